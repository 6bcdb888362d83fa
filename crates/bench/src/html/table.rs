//! A table: as HTML in its own scrollable box, and as CSV.

use std::fmt::Write as _;

use super::text::{escape, percent_encode};

/// A table. The first `names` columns name a row, the others are numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) names: usize,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the table as HTML, with a link that saves it as CSV.
    pub(super) fn html(&self) -> String {
        let mut html = format!(
            "<div class=scroll tabindex=0><table><caption>{}</caption>\n<thead><tr>",
            escape(&self.caption)
        );
        for (column, head) in self.head.iter().enumerate() {
            let class = if column < self.names { " class=name" } else { "" };
            let _ = write!(html, "<th scope=col{class}>{}", escape(head));
        }
        html.push_str("</thead>\n<tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let tag = if column < self.names { "<th scope=row>" } else { "<td>" };
                let _ = write!(html, "{tag}{}", escape(cell));
            }
            html.push('\n');
        }
        let _ = writeln!(
            html,
            "</tbody></table></div>\n<p class=csv><a download=\"{}.csv\" href=\"data:text/csv;charset=utf-8,{}\">Download as \
             CSV</a></p>",
            file_name(&self.caption),
            percent_encode(&self.csv())
        );
        html
    }

    /// Returns the table as CSV (RFC 4180).
    fn csv(&self) -> String {
        let mut csv = String::new();
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            csv.push_str(&cells.join(","));
            csv.push_str("\r\n");
        }
        csv
    }
}

/// Quotes a cell. A text that a spreadsheet would take for a formula gets an apostrophe in front.
fn quoted(cell: &str) -> String {
    let is_number = cell.parse::<f64>().is_ok();
    let guard = if !is_number && cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if guard.is_empty() && !cell.contains([',', '"', '\r', '\n']) {
        return cell.to_owned();
    }
    format!("\"{guard}{}\"", cell.replace('"', "\"\""))
}

fn file_name(caption: &str) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '-' };
    let name: String = caption.chars().map(plain).take(80).collect();
    name.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_cells() {
        let table = Table {
            caption: "get, <b>".into(),
            names: 1,
            head: vec!["target".into(), "p50, µs".into()],
            rows: vec![vec!["=1+\"<i>\"".into(), "-1.5".into()]],
        };
        assert_eq!(table.csv(), "target,\"p50, µs\"\r\n\"'=1+\"\"<i>\"\"\",-1.5\r\n");
        let html = table.html();
        assert!(html.contains("<th scope=row>=1+&quot;&lt;i&gt;&quot;<td>-1.5"), "{html}");
        assert!(
            html.contains("download=\"get-b.csv\"") && !html.contains("<i>") && !html.contains("<b>"),
            "{html}"
        );
    }
}
