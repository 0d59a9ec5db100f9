//! Compression by both engines, with and without igzip, on generated content: the bound holds, whatever comes out
//! decompresses, in one piece and in many, for us and for zlib and zstd.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use wattlock_core::samples::{self, Dice};
use wattlock_core::{
    DICTIONARY_MOST, Data, Engine, Error, Key, Kind, Options, OwnedRequest, Request, Then,
    compress_known_answers,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

const KINDS: [Kind; 2] = [Kind::Deflate, Kind::Zstd];

fn engines() -> Vec<(&'static str, Box<dyn Engine>)> {
    vec![
        ("software", Box::new(Software::new())),
        ("instruction", Box::new(Instruction::new())),
        ("instruction without libraries", Box::new(Instruction::without_libraries())),
    ]
}

fn content(dice: &mut Dice, len: usize) -> Vec<u8> {
    let seed = dice.roll();
    match dice.below(6) {
        0 => samples::html(seed, len),
        1 => samples::json(seed, len),
        2 => samples::text(seed, len),
        3 => samples::noise(seed, len),
        4 => vec![seed as u8; len],
        // Parts of each, as archives are.
        _ => {
            let mut mixed = samples::noise(seed, len);
            let middle = samples::html(seed, len / 2);
            mixed[len / 4..len / 4 + middle.len()].copy_from_slice(&middle);
            mixed
        }
    }
}

/// Lengths at every edge there is, and random ones.
fn length(dice: &mut Dice) -> usize {
    const EDGES: [usize; 14] =
        [0, 1, 2, 257, 258, 259, 32_768, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 262_144];
    match dice.below(5) {
        0 => EDGES[dice.below(EDGES.len())],
        1 => dice.below(60_000),
        _ => dice.below(3000),
    }
}

/// Asks Python to decode raw deflate streams (and `zstd` to decode frames) and compares.
struct Outside {
    streams: Vec<(Kind, Vec<u8>, Vec<u8>)>,
}

impl Outside {
    fn decodes_all(&self) {
        const SCRIPT: &str = "
import struct, sys, zlib
data, at, count = sys.stdin.buffer.read(), 0, 0
while at < len(data):
    packed, plain = struct.unpack_from('<II', data, at)
    at += 8
    stream, want = data[at:at + packed], data[at + packed:at + packed + plain]
    at += packed + plain
    decoder = zlib.decompressobj(-15)
    got = decoder.decompress(stream) + decoder.flush()
    assert got == want and decoder.eof and not decoder.unused_data, count
    count += 1
print(count)
";
        let (mut deflated, mut count, mut frames, mut plain) = (Vec::new(), 0, Vec::new(), Vec::new());
        for (kind, packed, want) in &self.streams {
            if *kind == Kind::Deflate {
                deflated.extend_from_slice(&(packed.len() as u32).to_le_bytes());
                deflated.extend_from_slice(&(want.len() as u32).to_le_bytes());
                deflated.extend_from_slice(packed);
                deflated.extend_from_slice(want);
                count += 1;
            } else {
                frames.extend_from_slice(packed);
                plain.extend_from_slice(want);
            }
        }
        let counted = piped(Command::new("python3").args(["-c", SCRIPT]), deflated);
        assert_eq!(String::from_utf8_lossy(&counted).trim(), count.to_string());
        if !frames.is_empty() {
            assert!(piped(Command::new("zstd").args(["-dc"]), frames) == plain, "zstd reads something else");
        }
    }
}

fn piped(command: &mut Command, input: Vec<u8>) -> Vec<u8> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program that decodes");
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{command:?} failed");
    output.stdout
}

#[test]
fn random_requests_come_back_and_keep_the_bound() {
    let judge = Software::new();
    for (name, engine) in engines() {
        let mut dice = Dice::new(21);
        let mut outside = Outside { streams: Vec::new() };
        for turn in 0..600 {
            let kind = KINDS[turn % 2];
            let len = length(&mut dice);
            let whole = content(&mut dice, len + DICTIONARY_MOST);
            let cut = dice.below(DICTIONARY_MOST + 1);
            let (before, input) = whole.split_at(cut);
            let input = &input[..len];
            let bound = kind.output_bound(len).unwrap();
            let mut request = OwnedRequest::new(kind, Arc::new(Key::none_owned()), input.to_vec(), bound);
            if dice.below(2) == 0 {
                request.aad = before.to_vec();
            }
            request.options.level = 1 + dice.below(9) as u8;
            request.options.last = dice.below(2) == 0;
            let what =
                format!("{name}: {} {len} {:?} behind {}", kind.name(), request.options, request.aad.len());
            let done = engine.execute(&mut request.view()).unwrap_or_else(|error| panic!("{what}: {error}"));
            judge.check(&request, done).unwrap_or_else(|_| panic!("{what}: wrong"));
            engine.check(&request, done).unwrap_or_else(|_| panic!("{what}: its own check refuses it"));
            if request.aad.is_empty() && request.options.last {
                outside.streams.push((kind, request.output[..done].to_vec(), input.to_vec()));
            }
            // Without room it says so, and what is in the way is not touched.
            let room = dice.below(done.max(1));
            let mut short = vec![0x55; room + 64];
            let (to, guard) = short.split_at_mut(room);
            let mut view = request.view();
            view.data = Data::Apart { from: input, to };
            match engine.execute(&mut view) {
                Err(Error::Invalid("output length")) => {}
                // What compressed differently may fit after all.
                Ok(less) if less <= room => {}
                other => panic!("{what} into {room}: {other:?}"),
            }
            assert!(guard.iter().all(|byte| *byte == 0x55), "{what} into {room}");
        }
        outside.decodes_all();
    }
}

#[test]
fn pieces_are_one_stream_and_each_flush_can_be_read() {
    let judge = Instruction::without_libraries();
    let mut outside = Outside { streams: Vec::new() };
    for (name, engine) in engines() {
        let mut dice = Dice::new(4);
        for turn in 0..120 {
            let (kind, level) = (KINDS[turn % 2], 1 + (turn / 2 % 9) as u8);
            let mut stream = engine.compress_stream(kind, level).unwrap();
            // The second stream of one compressor is as good as its first.
            for again in 0..2 {
                let len = length(&mut dice);
                let input = content(&mut dice, len);
                let dictionary = if kind == Kind::Deflate && dice.below(3) == 0 {
                    content(&mut dice, DICTIONARY_MOST - turn)
                } else {
                    Vec::new()
                };
                let what = format!("{name}: {} {level} {len} turn {turn}/{again}", kind.name());
                stream.start(&dictionary).unwrap();
                let mut request = OwnedRequest::new(kind, Arc::new(Key::none_owned()), Vec::new(), 0);
                (request.aad, request.options.level) = (dictionary, level);
                let (mut at, mut output) = (0, Vec::new());
                while at < len || len == 0 {
                    let size = match dice.below(4) {
                        0 => dice.below(4),
                        1 => dice.below(70_000),
                        _ => dice.below(5000),
                    };
                    let end = len.min(at + size);
                    let then = if end == len {
                        Then::End
                    } else if dice.below(5) == 0 {
                        Then::Flush
                    } else {
                        Then::More
                    };
                    loop {
                        let most = if dice.below(3) == 0 { 40 } else { 20_000 };
                        let mut room = vec![0; 16 + dice.below(most)];
                        let moved = stream.update(&input[at..end], &mut room, then).unwrap();
                        output.extend_from_slice(&room[..moved.written]);
                        at += moved.read;
                        if moved.done {
                            break;
                        }
                        assert_eq!(moved.written, room.len(), "{what}: it stopped with room left");
                    }
                    assert_eq!(at, end, "{what}");
                    if then == Then::Flush {
                        // Nothing more to bring out: a second flush writes nothing.
                        let moved = stream.update(&[], &mut [0; 64], then).unwrap();
                        assert!(moved.done && moved.written == 0, "{what}: {moved:?}");
                        if kind == Kind::Deflate {
                            (request.input, request.output) = (input[..at].to_vec(), output.clone());
                            request.options.last = false;
                            judge
                                .check(&request, output.len())
                                .unwrap_or_else(|_| panic!("{what}: flush at {at}"));
                        }
                    }
                    if then == Then::End {
                        break;
                    }
                }
                assert!(
                    stream.update(&[1], &mut [0; 64], Then::More).is_err(),
                    "{what}: goes on behind its end"
                );
                (request.input, request.output) = (input.clone(), output.clone());
                request.options.last = true;
                judge.check(&request, output.len()).unwrap_or_else(|_| panic!("{what}: wrong"));
                if request.aad.is_empty() {
                    outside.streams.push((kind, output, input));
                }
            }
        }
    }
    outside.decodes_all();
}

/// Each engine's flush where it is hardest: the content came before, in calls that left output waiting for room.
#[test]
fn a_flush_without_content_brings_out_all_that_waits() {
    let judge = Instruction::without_libraries();
    for (name, engine) in engines() {
        for level in [1, 6, 9] {
            // Around a block's end, which a compressor may reach with the last of the content.
            let ends = (31_600..32_400).step_by(100).map(|len| (len, 64));
            for (len, room) in ends.chain([(300_000, 64), (300_000, 40_000), (131_072, 16), (5, 16)]) {
                let what = format!("{name}: level {level}, {len} bytes, room {room}");
                let input = samples::noise(7, len);
                let mut stream = engine.compress_stream(Kind::Deflate, level).unwrap();
                stream.start(&[]).unwrap();
                let (mut at, mut output, mut buffer) = (0, Vec::new(), vec![0; room]);
                // All content first, without a flush.
                loop {
                    let moved = stream.update(&input[at..], &mut buffer, Then::More).unwrap();
                    output.extend_from_slice(&buffer[..moved.written]);
                    at += moved.read;
                    if moved.done {
                        break;
                    }
                }
                assert_eq!(at, len, "{what}");
                // Then the flush, into other room.
                let mut buffer = vec![0; 64 + room];
                while {
                    let moved = stream.update(&[], &mut buffer, Then::Flush).unwrap();
                    output.extend_from_slice(&buffer[..moved.written]);
                    !moved.done
                } {}
                let mut request = OwnedRequest::new(Kind::Deflate, Arc::new(Key::none_owned()), input, 0);
                (request.options.level, request.options.last) = (level, false);
                request.output = output;
                let made = request.output.len();
                judge.check(&request, made).unwrap_or_else(|_| panic!("{what}: something still waits"));
            }
        }
    }
}

#[test]
fn known_answers_hold_in_pieces() {
    for (name, engine) in engines() {
        for kind in KINDS {
            assert!(compress_known_answers(&*engine, kind).unwrap() > 0, "{name}");
        }
        assert_eq!(compress_known_answers(&*engine, Kind::Sha256), Err(Error::Unsupported), "{name}");
    }
}

#[test]
fn a_dictionary_or_a_level_that_is_too_large_is_refused() {
    let content = [1; 9];
    let mut output = [0; 600];
    let ask = |kind, dictionary: &[u8], level, output: &mut [u8]| {
        let data = Data::Apart { from: &content, to: output };
        let mut options = Options::default();
        options.level = level;
        Request { aad: dictionary, options, ..Request::new(kind, Key::none(), data) }.validate()
    };
    for (kind, most) in [(Kind::Deflate, 9), (Kind::Zstd, 19)] {
        assert_eq!(ask(kind, &[0; DICTIONARY_MOST], most, &mut output), Ok(()));
        assert!(ask(kind, &[0; DICTIONARY_MOST + 1], most, &mut output).is_err());
        assert!(ask(kind, &[], most + 1, &mut output).is_err() && ask(kind, &[], 0, &mut output).is_err());
    }
    for (_, engine) in engines() {
        let mut stream = engine.compress_stream(Kind::Deflate, 1).unwrap();
        assert!(stream.start(&[0; DICTIONARY_MOST + 1]).is_err());
        assert!(stream.update(&[1], &mut [0; 64], Then::End).is_err());
        assert!(engine.compress_stream(Kind::Deflate, 10).is_err());
    }
}

/// At level n at most 2 % longer than zlib at n, with igzip and without; of a KiB, 20 bytes.
#[test]
fn a_level_is_as_small_as_zlibs() {
    const SCRIPT: &str = "
import struct, sys, zlib
data, at = sys.stdin.buffer.read(), 0
while at < len(data):
    (size,) = struct.unpack_from('<I', data, at)
    content = data[at + 4:at + 4 + size]
    at += 4 + size
    for level in range(1, 10):
        c = zlib.compressobj(level, zlib.DEFLATED, -15, 8)
        print(len(c.compress(content) + c.flush()))
";
    let mut contents = Vec::new();
    for size in [1 << 20, 150_000, 16 << 10, 5 << 10, 1 << 10] {
        for seed in [1, 2] {
            contents.push(("html", samples::html(seed, size)));
            contents.push(("json", samples::json(seed, size)));
            contents.push(("text", samples::text(seed, size)));
            contents.push(("noise", samples::noise(seed, size)));
        }
    }
    let packed = contents
        .iter()
        .flat_map(|(_, content)| [&(content.len() as u32).to_le_bytes()[..], &content[..]].concat());
    let printed = piped(Command::new("python3").args(["-c", SCRIPT]), packed.collect());
    let zlib: Vec<usize> =
        String::from_utf8(printed).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    let mut wrong = Vec::new();
    for (name, engine) in engines().drain(1..) {
        for ((what, content), zlib) in contents.iter().zip(zlib.chunks(9)) {
            for (level, zlib) in (1..).zip(zlib) {
                let mut output = vec![0; Kind::Deflate.output_bound(content.len()).unwrap()];
                let mut options = Options::default();
                options.level = level;
                let data = Data::Apart { from: content, to: &mut output };
                let mut request = Request { options, ..Request::new(Kind::Deflate, Key::none(), data) };
                let len = engine.execute(&mut request).unwrap();
                // 2 % of such a page are some 10 bytes, which another division into blocks can cost.
                if len > zlib + 20.max(zlib / 50) {
                    let over = len as f64 / *zlib as f64;
                    wrong.push(format!(
                        "{name}, level {level}: {what} {}: {len}, zlib {zlib}, {over:.3}",
                        content.len()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
