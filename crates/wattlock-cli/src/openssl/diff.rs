//! What changes in a file, as `diff -u` prints it. Wattlock changes one place of a file, so one hunk shows it all.

use std::fmt::Write;
use std::path::Path;

/// Lines shown before and after the change.
const AROUND: usize = 3;

/// A unified diff; empty if nothing changes.
pub fn unified(path: &Path, before: &[u8], after: &[u8]) -> String {
    if before == after {
        return String::new();
    }
    let (old, new) = (lines(before), lines(after));
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let from = head.saturating_sub(AROUND);
    let after_len = tail.min(AROUND);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let range = |end: usize| {
        let len = end + after_len - from;
        format!("{},{len}", if len == 0 { from } else { from + 1 })
    };
    let mut out =
        format!("--- {0}\n+++ {0}\n@@ -{1} +{2} @@\n", path.display(), range(old_end), range(new_end));
    let mut put = |sign: char, line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let _ = match text.strip_suffix('\n') {
            Some(text) => writeln!(out, "{sign}{}", text.trim_end_matches('\r')),
            None => writeln!(out, "{sign}{text}\n\\ No newline at end of file"),
        };
    };
    old[from..head].iter().for_each(|line| put(' ', line));
    old[head..old_end].iter().for_each(|line| put('-', line));
    new[head..new_end].iter().for_each(|line| put('+', line));
    old[old_end..old_end + after_len].iter().for_each(|line| put(' ', line));
    out
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_and_removed_lines_are_shown_with_what_stands_around() {
        let path = Path::new("f");
        assert_eq!(unified(path, b"a\n", b"a\n"), "");
        let shown = unified(path, b"1\n2\n3\n4\n5\n", b"1\n2\n3\n4\nx\n5\n");
        assert_eq!(shown, "--- f\n+++ f\n@@ -2,4 +2,5 @@\n 2\n 3\n 4\n+x\n 5\n");
        let shown = unified(path, b"a", b"a\nb\n");
        assert_eq!(shown, "--- f\n+++ f\n@@ -1,1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n");
        assert_eq!(unified(path, b"", b"a\n"), "--- f\n+++ f\n@@ -0,0 +1,1 @@\n+a\n");
    }
}
