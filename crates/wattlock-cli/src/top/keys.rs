//! What is typed, from a terminal's bytes: few keys, and everything else is nothing.
//!
//! Not through crossterm, whose reader never returns from a terminal that has gone away (a read of no bytes).

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// With the control key: its letter.
    Control(char),
    Typed(char),
}

/// The keys of what was read at once. A sequence that is cut is lost, and an escape at the end is the key.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let (mut keys, mut rest) = (Vec::new(), bytes);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            0x1b => {
                let (key, behind) = escaped(after);
                keys.extend(key);
                rest = behind;
            }
            b'\r' | b'\n' => keys.push(Key::Enter),
            0x7f | 0x08 => keys.push(Key::Backspace),
            1..=26 => keys.push(Key::Control(char::from(first + b'a' - 1))),
            0..=0x1f => {}
            _ => {
                let (character, behind) = character(&bytes[bytes.len() - after.len() - 1..]);
                keys.extend(character.map(Key::Typed));
                rest = behind;
            }
        }
    }
    keys
}

/// The first character, if it is one, and what follows it.
fn character(bytes: &[u8]) -> (Option<char>, &[u8]) {
    let longest = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(longest) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&longest[..error.valid_up_to()]).unwrap_or_default(),
    };
    match valid.chars().next() {
        Some(character) => (Some(character), &bytes[character.len_utf8()..]),
        None => (None, &bytes[1..]),
    }
}

/// The key of a sequence behind an escape (ECMA-48: CSI, parameters, a final byte; SS3 and one byte), and what follows.
fn escaped(bytes: &[u8]) -> (Option<Key>, &[u8]) {
    let Some((kind @ (b'[' | b'O'), body)) = bytes.split_first() else { return (Some(Key::Escape), bytes) };
    let parameters = body.iter().take_while(|byte| *kind == b'[' && (0x20..=0x3f).contains(*byte)).count();
    let Some(last) = body.get(parameters) else { return (None, &[]) };
    let key = match (last, &body[..parameters]) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) => Some(Key::Right),
        (b'D', _) => Some(Key::Left),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'M', _) => Some(Key::Enter).filter(|_| *kind == b'O'),
        _ => None,
    };
    (key, &body[parameters + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_told_apart_from_what_a_terminal_says() {
        use Key::*;
        assert_eq!(keys(b"q"), [Typed('q')]);
        assert_eq!(keys(b"\x1b"), [Escape]);
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[1;5C\x1b[5~x"), [Up, Down, Right, PageUp, Typed('x')]);
        assert_eq!(keys(b"\x03\x1a\r\x7f\x00"), [Control('c'), Control('z'), Enter, Backspace]);
        assert_eq!(keys("é日".as_bytes()), [Typed('é'), Typed('日')]);
        assert_eq!(keys(b"\xffa\xe6"), [Typed('a')]);
        // An answer of the terminal to a question that nobody asked.
        assert!(keys(b"\x1b[?62;1c\x1b[200~").is_empty());
        assert!(keys(b"\x1b[").is_empty());
    }

    #[test]
    fn no_bytes_are_too_strange() {
        let mut state = 1_u32;
        for length in 0..2000 {
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state >> 31 == 0 { 0x1b } else { (state >> 16) as u8 }
            };
            let bytes: Vec<u8> = (0..length % 20).map(|_| byte()).collect();
            assert!(keys(&bytes).len() <= bytes.len(), "{bytes:?}");
        }
    }
}
