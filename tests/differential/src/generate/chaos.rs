//! Recipes without a target pair: many commands on one key, in any order, to test their interaction.

use super::{Gen, Recipe, Selection, State, binary, meta, text};
use crate::unit::Wire;

/// Returns the recipes.
pub(super) fn recipes(wire: Wire) -> Vec<Recipe> {
    Recipe::all(wire, crowd, 4).collect()
}

/// Stores, reads and deletes two keys at random.
fn crowd(g: &mut Gen, _: usize) {
    let keys = [g.any(), g.any()];
    for _ in 0..g.rng.between(2, 6) {
        let index = *g.rng.pick(&keys);
        match (g.rng.below(6), g.state(index)) {
            (0, _) => g.store(index, State::Text),
            (1, _) => g.store(index, State::Number),
            (2, State::Absent) | (3..6, _) => g.learn(index),
            _ => g.remove(index),
        }
    }
}

/// Returns the recipes with target pairs in the coverage table.
pub(super) fn aimed(wire: Wire, selection: Selection) -> Vec<Recipe> {
    match (wire, selection) {
        (Wire::Binary, _) => binary::recipes(),
        (_, Selection::Text) => text::recipes(),
        // Meta sequences also send the fixed lines of text.
        (_, Selection::Meta) => [meta::recipes(), text::fixed_lines()].concat(),
        _ => [text::recipes(), meta::recipes()].concat(),
    }
}
