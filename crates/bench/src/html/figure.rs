//! A figure before it is drawn.

use super::table::Table;
use super::text::Unit;

/// A figure with its texts and data.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) title: String,
    /// A description of the axes, for screen readers.
    pub(super) description: String,
    pub(super) drawing: Drawing,
    /// A hint for reading the figure.
    pub(super) hint: &'static str,
    /// Remarks needed to interpret it.
    pub(super) notes: Vec<String>,
    pub(super) table: Table,
}

#[derive(Clone, Debug)]
pub(super) enum Drawing {
    /// Lines over an axis.
    Lines { x: Axis, y: Axis, series: Vec<Series> },
    /// Bars from zero, in groups.
    Bars { unit: Unit, series: Vec<String>, groups: Vec<Group> },
    /// Bars of parts that follow each other.
    Stacks { unit: Unit, parts: Vec<String>, rows: Vec<(String, Vec<f64>)> },
}

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) unit: Unit,
    pub(super) is_log: bool,
}

/// A line. `slot` selects its color and marks, `dash` its dashes; both wrap around.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) slot: usize,
    pub(super) dash: usize,
    pub(super) points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// The least and the greatest of the rounds.
    pub(super) range: (f64, f64),
    pub(super) mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    None,
    Full,
    /// The clients were at their limit.
    Hollow,
}

/// A group of bars.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// The series, its value, and the least and the greatest of the rounds.
    pub(super) bars: Vec<(usize, f64, (f64, f64))>,
}

impl Figure {
    /// Returns whether the figure shows nothing.
    pub(super) fn is_empty(&self) -> bool {
        match &self.drawing {
            Drawing::Lines { series, .. } => series.iter().all(|series| series.points.is_empty()),
            Drawing::Bars { groups, .. } => groups.iter().all(|group| group.bars.is_empty()),
            Drawing::Stacks { rows, .. } => rows.is_empty(),
        }
    }
}
