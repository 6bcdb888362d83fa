//! Splits a command line as a shell does: blanks, quotes and backslashes only.

use anyhow::{Result, bail};

/// Splits a text into words.
///
/// # Errors
/// A quote is not closed, or nothing follows the last backslash.
pub fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                quoted(&mut rest, c, word, text)?;
            }
            '\\' => match rest.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => bail!("nothing follows the last backslash of {text:?}"),
            },
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads up to the closing quote. Between double quotes a backslash escapes `"` and `\`.
fn quoted(rest: &mut std::str::Chars<'_>, quote: char, word: &mut String, text: &str) -> Result<()> {
    while let Some(c) = rest.next() {
        if c == quote {
            return Ok(());
        }
        let escaped = (quote == '"' && c == '\\').then(|| rest.clone().next()).flatten();
        match escaped {
            Some(next @ ('"' | '\\')) => {
                rest.next();
                word.push(next);
            }
            _ => word.push(c),
        }
    }
    bail!("the quote {quote} is not closed in {text:?}")
}

/// Joins words into a text that [`words`] splits again.
pub fn joined(words: &[String]) -> String {
    let plain = |word: &str| {
        let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%{}[]".contains(c);
        !word.is_empty() && word.chars().all(is_plain)
    };
    let written = words.iter().map(|word| match plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    written.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_become_words() {
        for (text, expected) in [
            ("", &[] as &[&str]),
            ("  a  b\tc ", &["a", "b", "c"]),
            ("a 'b c' d\"e f\"g", &["a", "b c", "de fg"]),
            (r#"'' "" a\ b"#, &["", "", "a b"]),
            (r#""a \"b\" \\ \n" 'c\'"#, &[r#"a "b" \ \n"#, r"c\"]),
        ] {
            assert_eq!(words(text).expect(text), expected, "{text}");
        }
        for (text, culprit) in [("a 'b", "not closed"), ("\"", "not closed"), ("a\\", "backslash")] {
            let error = words(text).expect_err(text).to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }

    proptest! {
        #[test]
        fn joined_words_split_again(all in proptest::collection::vec(".*", 0..5)) {
            prop_assert_eq!(words(&joined(&all)).expect("it is well formed"), all);
        }

        #[test]
        fn any_text_is_accepted_or_rejected(text in ".*") {
            let _ = words(&text);
        }
    }
}
