//! A sealed stream's frames: header and heads as anybody may write them, and a right stream that was mangled. What a
//! reader releases is the stream's beginning, and its end is an end only if nothing was touched.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use wattlock_fuzz::{Bytes, Portable};
use wattlock_stream::format::{
    COMMITMENT_LEN, Chain, FIXED_LEN, FRAME_EXTRA, Flags, Frame, HEAD_LEN, Head, SALT_LEN, encode_header,
    parse_fixed,
};

const KEY: [u8; 32] = [7; 32];
const SALT: [u8; SALT_LEN] = [8; SALT_LEN];

fn header() -> &'static [u8] {
    static HEADER: OnceLock<Vec<u8>> = OnceLock::new();
    HEADER.get_or_init(|| encode_header(b"a key file").expect("short"))
}

fn chain() -> (Chain, [u8; COMMITMENT_LEN]) {
    Chain::new(&KEY, &SALT, header(), &mut Portable).expect("it derives")
}

/// Frames of these lengths and flags, sealed.
fn sealed(frames: &[(Flags, usize)]) -> (Vec<u8>, Vec<u8>, Vec<usize>) {
    let (mut bytes, mut content, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let mut chain = chain().0;
    for (number, (flags, len)) in frames.iter().enumerate() {
        let plain: Vec<u8> = (0..*len).map(|at| (at + number) as u8).collect();
        let mut frame = vec![0; len + FRAME_EXTRA];
        frame[HEAD_LEN..HEAD_LEN + len].copy_from_slice(&plain);
        let head = Head { flags: *flags, len: *len };
        let whole = [Frame { at: 0, head }];
        chain.epoch().seal(number as u64, &mut frame, &whole, &mut Portable).expect("it seals");
        bytes.extend(frame);
        content.extend(plain);
        ends.push(bytes.len());
        if flags.has(Flags::NEW_KEY) {
            chain.advance(&mut Portable).expect("it derives");
        }
    }
    (bytes, content, ends)
}

/// What a reader makes of them, batch after batch: released content, and whether the stream ended well.
fn opened(bytes: &[u8]) -> (Vec<u8>, bool) {
    let (mut chain, mut rest, mut number, mut content) = (chain().0, bytes, 0, Vec::new());
    loop {
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return (content, false) };
        let Ok(head) = Head::parse(*head) else { return (content, false) };
        let frame = Frame { at: 0, head };
        if frame.end() > rest.len() {
            return (content, false);
        }
        let (now, after) = rest.split_at(frame.end());
        let mut now = now.to_vec();
        if chain.epoch().open(number, &mut now, &[frame], &mut Portable).1.is_some() {
            return (content, false);
        }
        content.extend(&now[frame.content()]);
        (rest, number) = (after, number + 1);
        if head.flags.has(Flags::END) {
            return (content, rest.is_empty());
        }
        if head.flags.has(Flags::NEW_KEY) {
            chain.advance(&mut Portable).expect("it derives");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(fixed) = bytes.first_chunk::<FIXED_LEN>()
        && let Ok(len) = parse_fixed(fixed)
    {
        assert!(len > 0 && len <= 1 << 20);
        let again = encode_header(&vec![0; len]).expect("as long as it may be");
        assert_eq!(again[..FIXED_LEN], fixed[..]);
    }
    if let Some(head) = bytes.first_chunk::<HEAD_LEN>()
        && let Ok(parsed) = Head::parse(*head)
    {
        assert_eq!(parsed.encode(), *head);
    }
    let _ = opened(bytes);
    let mut bytes = Bytes(bytes);
    let count = bytes.below(6);
    let mut frames = Vec::new();
    for _ in 0..count {
        let flags = bytes.pick(&[Flags::NONE, Flags::RECORD_END, Flags::NEW_KEY]);
        frames.push((flags, bytes.below(300)));
    }
    frames.push((Flags::END, bytes.below(40)));
    let (right, content, ends) = sealed(&frames);
    assert!(opened(&right) == (content.clone(), true), "a right stream");
    let mut altered = right.clone();
    for _ in 0..bytes.below(4) {
        let at = bytes.below(altered.len().max(1));
        match bytes.byte() % 5 {
            0 => altered.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => altered.truncate(at),
            2 => altered.extend(bytes.take(40)),
            3 => drop(altered.drain(at.min(altered.len())..(at + bytes.below(60)).min(altered.len()))),
            _ => {
                // A frame twice.
                let which = at % ends.len();
                let from = which.checked_sub(1).map_or(0, |before| ends[before]);
                let frame = right[from..ends[which]].to_vec();
                let place = ends[which].min(altered.len());
                drop(altered.splice(place..place, frame));
            }
        }
    }
    let (got, ended) = opened(&altered);
    assert!(content.starts_with(&got), "what was released is not the beginning");
    assert_eq!(ended, altered == right);
});
