//! Rust source with everything that is not code blanked out, so that a rule never trips over a comment or a string.

/// Replaces comments and the content of string and character literals by spaces; lines and columns stay.
pub(crate) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        if end > at {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// The position after the comment or literal that starts at `at`; `at` itself if none starts there.
fn literal_or_comment_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |chars, i| chars[i] == '\n'),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if !follows_word(chars, at) => raw_string_end(chars, at),
        '\'' => char_end(chars, at),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, stop: impl Fn(&[char], usize) -> bool) -> usize {
    (from..chars.len()).find(|i| stop(chars, *i)).unwrap_or(chars.len())
}

fn follows_word(chars: &[char], at: usize) -> bool {
    let before = |distance: usize| at.checked_sub(distance).map(|i| chars[i]);
    match before(1) {
        // br"…" is the only literal in which a letter precedes the r.
        Some('b') => before(2).is_some_and(is_word),
        before => before.is_some_and(is_word),
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(chars.len())
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    let quote = start + 1 + hashes;
    if chars.get(quote) != Some(&'"') {
        return start;
    }
    let closes = |chars: &[char], i: usize| {
        i > quote && chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (find(chars, quote, closes) + 1 + hashes).min(chars.len())
}

/// `'x'` and `'\n'` are literals, `'a` is a lifetime.
fn char_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => (find(chars, start + 3, |chars, i| chars[i] == '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Each word of a line of code, with what stands before and after it, without spaces.
pub(crate) fn words(line: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + line[from..].find(is_word)?;
        let end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |length| start + length);
        from = end;
        Some((line[..start].trim_end(), &line[start..end], line[end..].trim_start()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_positions_stay() {
        let source = "let a = \"aya::x\"; // aya::y\n/* aya /* nested */ aya */ let b = 'a';\nlet c: &'static str = r#\"aya\"aya\"#;";
        let code = code_only(source);
        assert!(!code.contains("aya"), "{code}");
        assert_eq!(code.len(), source.len());
        for part in ["let a =", "let b =", "&'static str =", ";"] {
            assert!(code.contains(part), "{part} is not in {code}");
        }
        assert_eq!(code.find("let b"), source.find("let b"));
    }

    #[test]
    fn escapes_do_not_end_a_literal_early() {
        for literal in [r#""a\"b aya""#, r"'\''", r"'\u{61}'", r#"b"\\aya""#, r##"br#"aya "# "##] {
            let code = code_only(&format!("f({literal}); end"));
            assert!(!code.contains("aya"), "{literal} left {code}");
            assert!(code.ends_with("); end"), "{literal} left {code}");
        }
    }

    #[test]
    fn an_open_comment_or_literal_ends_with_the_file() {
        for source in ["/* aya", "\"aya", "r#\"aya\"", "'\\", "// aya", "\"aya\\"] {
            assert!(!code_only(source).contains("aya"), "{source}");
        }
    }

    #[test]
    fn identifiers_that_contain_r_or_quotes_of_lifetimes_are_code() {
        for code in ["var", "for<'a> fn(&'a str)", "expr#x", "r#type"] {
            assert_eq!(code_only(code), code);
        }
    }

    #[test]
    fn words_come_with_their_surroundings() {
        let found: Vec<_> = words("use aya :: Ebpf;").collect();
        assert_eq!(found, [("", "use", "aya :: Ebpf;"), ("use", "aya", ":: Ebpf;"), ("use aya ::", "Ebpf", ";")]);
    }
}
