//! The one place where text of other programs becomes text that a terminal may be sent: what is left stands in as
//! many columns as it says, and tells the terminal nothing.

use unicode_width::UnicodeWidthChar;

/// Characters that are shown as nothing, change the direction of their neighbours, or join them: a terminal and we
/// might count their columns differently (Unicode: default ignorable code points, bidirectional controls, separators
/// of lines).
const UNSEEN: [(u32, u32); 17] = [
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x061c, 0x061c),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x200b, 0x200f),
    (0x2028, 0x202f),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    // Flags are two of these, and colours of skin join the character before them.
    (0x1f1e6, 0x1f1ff),
    (0x1f3fb, 0x1f3ff),
    (0xe0000, 0xe0fff),
];

/// The characters of a text that are seen. Blanks of every sort become spaces, and what is left out one `?` together.
pub fn shown(text: &str) -> String {
    let (mut kept, mut left_out) = (String::with_capacity(text.len()), false);
    for character in text.chars() {
        let seen = columns(character);
        if seen > 0 {
            kept.push(if character.is_whitespace() { ' ' } else { character });
        } else if !left_out {
            kept.push('?');
        }
        left_out = seen == 0;
    }
    kept
}

/// Columns of a text that [`shown`] made.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// As much of such a text as stands in so many columns, and blanks behind it, or before it.
pub fn padded(text: &str, wide: usize, left: bool) -> String {
    let mut kept = String::with_capacity(wide);
    let mut taken = 0;
    for character in text.chars() {
        if taken + columns(character) > wide {
            break;
        }
        taken += columns(character);
        kept.push(character);
    }
    let blanks = " ".repeat(wide - taken);
    if left { kept + &blanks } else { blanks + &kept }
}

/// 0 for what is not shown.
fn columns(character: char) -> usize {
    let unseen = UNSEEN.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(character)));
    match character.width() {
        // A few are wider than any cell of a terminal.
        Some(seen @ 1..=2) if !character.is_control() && !unseen => seen,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_drives_a_terminal_is_left() {
        for (hostile, tame) in [
            ("a\u{1b}[2Jb\u{7}\u{9b}m\n", "a?[2Jb?m?"),
            ("gpj\u{202e}exe\u{2066}", "gpj?exe?"),
            ("a\u{200b}\u{200d}\u{feff}\u{ad}b", "a?b"),
            ("e\u{301}\u{e0041}", "e?"),
            ("one\u{2028}two\u{a0}three\u{3000}", "one?two three "),
            ("<b>&amp;[red]", "<b>&amp;[red]"),
        ] {
            assert_eq!(shown(hostile), tame, "{hostile:?}");
        }
        for number in 0..=0x10_ffff_u32 {
            let Some(character) = char::from_u32(number) else { continue };
            let text = shown(&character.to_string());
            assert!(!text.contains(char::is_control) && (1..=2).contains(&width(&text)), "{number:x}");
        }
    }

    #[test]
    fn a_wide_character_that_has_no_room_is_left_out_whole() {
        assert_eq!(padded("日本", 3, true), "日 ");
        assert_eq!(padded("日本", 4, true), "日本");
        assert_eq!(padded("12", 4, false), "  12");
        assert_eq!(padded("12345", 3, false), "123");
    }
}
