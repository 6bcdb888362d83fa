//! Results as a page: one HTML file without external resources or scripts.
//!
//! - `data.rs`: results by case; files of one subcommand are merged.
//! - `plots.rs`: selects figures; `figure.rs`: a figure; `draw.rs`, `scale.rs`: its picture.
//! - `everything.rs`: tables of ratios and of all numbers; `table.rs`: a table as HTML and as CSV.
//! - `text.rs`: numbers with units; escapes text from files.
//!
//! Files are not trusted: their contents appear as text only.

mod data;
mod draw;
mod everything;
mod figure;
mod plots;
mod scale;
mod table;
mod text;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::results::Results;

use data::{Data, merged};
use figure::Figure;
use text::{day_and_time, escape, spoken};

const STYLE: &str = include_str!("style.css");

/// The page loads nothing and runs nothing, regardless of the files' contents.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The results of one subcommand, from one or more files.
struct Section {
    subcommand: String,
    files: Vec<(String, Results)>,
}

/// Writes the page of these results, each with its file's name. Files of one subcommand share figures.
///
/// # Errors
/// The file cannot be written.
pub fn save(files: Vec<(String, Results)>, path: &Path) -> Result<()> {
    std::fs::write(path, page(files)).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the page of these results, each with its file's name.
pub fn page(files: Vec<(String, Results)>) -> String {
    let sections = sections(files);
    let names: Vec<&str> = sections.iter().map(|section| section.subcommand.as_str()).collect();
    let mut html = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta http-equiv=Content-Security-Policy content=\"{POLICY}\">\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n<meta name=color-scheme content=\"light dark\">\n\
         <title>fabcache bench: {}</title>\n<style>\n{STYLE}</style>\n<h1>fabcache bench</h1>\n",
        escape(&names.join(", "))
    );
    if sections.len() > 1 {
        html.push_str("<nav><ul>\n");
        for (number, section) in sections.iter().enumerate() {
            let _ = writeln!(html, "<li><a href=\"#s{number}\">{}</a>", escape(&section.subcommand));
        }
        html.push_str("</ul></nav>\n");
    }
    html.push_str("<main>\n");
    for (number, section) in sections.iter().enumerate() {
        html.push_str(&section.html(&format!("s{number}")));
    }
    html.push_str("</main>\n</html>\n");
    html
}

fn sections(files: Vec<(String, Results)>) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (file, results) in files {
        match sections.iter_mut().find(|section| section.subcommand == results.subcommand) {
            Some(section) => section.files.push((file, results)),
            None => {
                sections
                    .push(Section { subcommand: results.subcommand.clone(), files: vec![(file, results)] });
            }
        }
    }
    sections
}

impl Section {
    fn html(&self, id: &str) -> String {
        let mut html = format!("<section id={id}>\n<h2>{}</h2>\n", escape(&self.subcommand));
        for (file, results) in &self.files {
            html.push_str(&run(file, results, self.files.len() > 1));
        }
        let Some(all) = merged(&self.files) else { return html };
        let data = Data::of(&all);
        for note in everything::notes(&data) {
            let _ = writeln!(html, "<p class=note>{}</p>", escape(&note));
        }
        html.push_str("<div class=figures>\n");
        for (number, figure) in plots::figures(&self.subcommand, &data).iter().enumerate() {
            html.push_str(&framed(figure, &format!("{id}-f{number}")));
        }
        html.push_str("</div>\n");
        for (file, results) in &self.files {
            let own = if self.files.len() > 1 { Some(file.as_str()) } else { None };
            for table in everything::ratios(results, own) {
                html.push_str(&table.html());
            }
        }
        let _ = writeln!(
            html,
            "<details><summary>Everything</summary>\n{}</details>\n</section>",
            everything::table(&self.subcommand, &data).html()
        );
        html
    }
}

/// Returns the header of a run: when, where, what, how.
fn run(file: &str, results: &Results, is_named: bool) -> String {
    let mut html = String::from("<div class=run>\n");
    if is_named {
        let _ = writeln!(html, "<h3>{}</h3>", escape(file));
    }
    html.push_str("<dl>\n");
    html.push_str(&row("when", &day_and_time(results.run.unix_time)));
    let mut facts = String::new();
    // All known facts of the machine, by their names in the file.
    if let Ok(Value::Object(known)) = serde_json::to_value(&results.run) {
        for (name, value) in known.iter().filter(|(name, _)| *name != "unix_time") {
            match value {
                Value::Null => {}
                Value::Object(more) => {
                    facts.extend(
                        more.iter().map(|(name, fact)| row(name, fact.as_str().unwrap_or(&fact.to_string()))),
                    );
                }
                Value::String(text) => html.push_str(&row(&spoken(name), text)),
                other => html.push_str(&row(&spoken(name), &other.to_string())),
            }
        }
    }
    html.push_str(&row("command", &results.command));
    html.push_str(&row("method", &results.method));
    html.push_str("</dl>\n");
    if !facts.is_empty() {
        let _ =
            writeln!(html, "<details><summary>More of the machine</summary>\n<dl>\n{facts}</dl></details>");
    }
    html.push_str(&everything::targets(results).html());
    html.push_str("</div>\n");
    html
}

fn row(name: &str, value: &str) -> String {
    format!("<div><dt>{}<dd>{}</div>\n", escape(name), escape(value))
}

fn framed(figure: &Figure, id: &str) -> String {
    let mut html = format!("<figure id={id}>\n<figcaption>{}</figcaption>\n", escape(&figure.title));
    html.push_str(&draw::draw(figure, id));
    if !figure.hint.is_empty() {
        let _ = writeln!(html, "<p class=hint>{}</p>", escape(figure.hint));
    }
    for note in &figure.notes {
        let _ = writeln!(html, "<p class=note>{}</p>", escape(note));
    }
    let _ = writeln!(html, "<details><summary>Data</summary>\n{}</details>\n</figure>", figure.table.html());
    html
}
