//! Streams between pipes and files: every framing, sizes around limits, slow producers, and every way to stop.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use common::*;
use wattlock_stream::format::FRAME_MAX;
use wattlock_stream::framer::{FRAME_LEN, SEGMENT_LEN};
use wattlock_stream::pipe::{self, Ends, Sealing};
use wattlock_stream::{Error, Framing};

#[test]
fn every_framing_and_size_comes_back() {
    let (pair, runtime) = (Pair::new(), runtime());
    let opener = pair.opener();
    for len in [0, 1, 99, 100, 101, 1000, SEGMENT_LEN - 1, SEGMENT_LEN, SEGMENT_LEN + 1, 3 * SEGMENT_LEN] {
        for framing in [Framing::Raw, Framing::Lines] {
            for frame_len in [100, FRAME_LEN, FRAME_MAX] {
                if frame_len == 100 && len > 2000 {
                    continue;
                }
                let plain = if framing == Framing::Raw { content(len) } else { lines(len) };
                let sealed = seal(&pair, &plain, &in_frames(framing, frame_len));
                let (outcome, opened) = open(&opener, &runtime, &sealed);
                outcome.unwrap();
                assert!(opened == plain, "{framing:?} {len} {frame_len}");
            }
        }
    }
}

/// The worked counts of docs/formats/stream.md.
#[test]
fn a_stream_has_the_documented_length() {
    let pair = Pair::new();
    for (len, frames, bytes) in [
        (0, 1, 20),
        (1, 1, 21),
        (65_535, 1, 65_555),
        (65_536, 2, 65_576),
        (65_537, 2, 65_577),
        (1_000_000, 16, 1_000_320),
    ] {
        let (passed, sealed) = try_seal(&pair, &content(len), &one_worker());
        assert_eq!((passed.unwrap().frames, sealed.len()), (frames, 16 + 232 + 56 + bytes), "{len}");
    }
}

#[test]
fn records_with_lengths_of_their_own_are_whole_in_their_frames() {
    let (pair, runtime) = (Pair::new(), runtime());
    let mut plain = Vec::new();
    for len in [0usize, 1, 95, 96, 97, 300, 40, 0, 50] {
        plain.extend_from_slice(&(len as u32).to_be_bytes());
        plain.extend_from_slice(&content(len));
    }
    let sealed = seal(&pair, &plain, &in_frames(Framing::Length, 100));
    let (outcome, opened) = open(&pair.opener(), &runtime, &sealed);
    outcome.unwrap();
    assert_eq!(opened, plain);
    let shape: Vec<_> =
        frames(&sealed).into_iter().map(|frame| (frame.len() - 20, sealed[frame.start])).collect();
    let expected = [
        (9, 1),
        (99, 1),
        (100, 1),
        (100, 0),
        (1, 1),
        (100, 0),
        (100, 0),
        (100, 0),
        (4 + 44 + 4, 1),
        (54, 0x81),
    ];
    assert_eq!(shape, expected);
}

#[test]
fn an_input_that_ends_inside_a_record_leaves_the_stream_without_an_end() {
    let (pair, runtime) = (Pair::new(), runtime());
    let plain = [&[0, 0, 0, 2][..], b"ab", &[0, 0, 0, 9], b"cd"].concat();
    let (outcome, sealed) = try_seal(&pair, &plain, &in_frames(Framing::Length, 100));
    assert!(matches!(outcome, Err(Error::RecordCut)), "{outcome:?}");
    let (outcome, opened) = open(&pair.opener(), &runtime, &sealed);
    assert!(matches!(outcome, Err(Error::Cut { .. })), "{outcome:?}");
    assert_eq!(opened, plain);
}

/// Both directions at once, over pipes, with that many workers: what comes out.
fn over_pipes(pair: &Pair, plain: &[u8], settings: &Sealing, workers: usize) -> (Vec<u8>, u64) {
    let (runtime, (from, to)) = (runtime(), pipe());
    let mut to = File::from(to);
    let ((middle_from, middle_to), (out_from, out_to)) = (pipe(), pipe());
    std::thread::scope(|scope| {
        scope.spawn(move || to.write_all(plain).unwrap());
        let sealing = scope.spawn(|| {
            let ends = Ends { input: from, output: middle_to, stop: None };
            pipe::seal(ends, &pair.sealer(), settings, &runtime).unwrap()
        });
        let opening = scope.spawn(|| {
            let ends = Ends { input: middle_from, output: out_to, stop: None };
            pipe::open(ends, &pair.opener(), workers, &runtime).unwrap()
        });
        let opened = read_all(out_from);
        let (sealed, passed) = (sealing.join().unwrap(), opening.join().unwrap());
        assert_eq!(
            (sealed.frames, sealed.content, sealed.keys),
            (passed.frames, passed.content, passed.keys)
        );
        (opened, passed.keys)
    })
}

#[test]
fn any_number_of_workers_keeps_the_order() {
    let pair = Pair::new();
    for workers in [1, 2, 5] {
        for (framing, frame_len) in
            [(Framing::Raw, FRAME_LEN), (Framing::Lines, 5000), (Framing::Raw, FRAME_MAX)]
        {
            let plain = lines((8 << 20) + 3);
            let settings = Sealing { workers, ..in_frames(framing, frame_len) };
            let (opened, _) = over_pipes(&pair, &plain, &settings, workers);
            assert!(opened == plain, "{workers} {framing:?}");
        }
    }
}

#[test]
fn keys_change_on_the_way() {
    let pair = Pair::new();
    let plain = content(4 << 20);
    for workers in [1, 3] {
        let settings = Sealing { new_key_bytes: 1 << 20, workers, ..Sealing::default() };
        let (opened, keys) = over_pipes(&pair, &plain, &settings, workers);
        assert!(opened == plain);
        assert!((3..=5).contains(&keys), "{keys}");
    }
}

/// A consumer that waits for each line before it lets the producer write the next: nothing may be held for ever, and
/// nothing needs a second line to be released.
#[test]
fn each_line_of_a_slow_producer_arrives_by_itself() {
    let (pair, runtime) = (Pair::new(), runtime());
    for latency in [Duration::ZERO, Duration::from_millis(1)] {
        for learns in [false, true] {
            let settings =
                Sealing { framing: Framing::Lines, latency: Some(latency), learns, ..Sealing::default() };
            let ((from, to), (middle_from, middle_to), (out_from, out_to)) = (pipe(), pipe(), pipe());
            let (mut producer, mut consumer) = (File::from(to), File::from(out_from));
            std::thread::scope(|scope| {
                let sealing = scope.spawn(|| {
                    let ends = Ends { input: from, output: middle_to, stop: None };
                    pipe::seal(ends, &pair.sealer(), &settings, &runtime).unwrap()
                });
                let opening = scope.spawn(|| {
                    let ends = Ends { input: middle_from, output: out_to, stop: None };
                    pipe::open(ends, &pair.opener(), 0, &runtime).unwrap()
                });
                for line in 0..50 {
                    let line = format!("line {line}\n");
                    producer.write_all(line.as_bytes()).unwrap();
                    let mut arrived = vec![0; line.len()];
                    consumer.read_exact(&mut arrived).unwrap();
                    assert_eq!(arrived, line.as_bytes());
                }
                // Half a line stays until its end, or the input's.
                producer.write_all(b"half").unwrap();
                drop(producer);
                let mut rest = Vec::new();
                consumer.read_to_end(&mut rest).unwrap();
                assert_eq!(rest, b"half");
                assert_eq!(sealing.join().unwrap().frames, 51);
                assert!(opening.join().unwrap().latency.quantile(0.99).is_some());
            });
        }
    }
}

#[test]
fn the_word_to_stop_ends_the_stream_behind_what_was_read() {
    let (pair, runtime) = (Pair::new(), runtime());
    let ((from, to), (out_from, out_to), (stop, say)) = (pipe(), pipe(), pipe());
    let mut producer = File::from(to);
    let settings = Sealing { latency: Some(Duration::ZERO), ..one_worker() };
    let sealed = std::thread::scope(|scope| {
        let sealing = scope.spawn(|| {
            let ends = Ends { input: from, output: out_to, stop: Some(stop.as_fd()) };
            pipe::seal(ends, &pair.sealer(), &settings, &runtime)
        });
        producer.write_all(b"read before").unwrap();
        let mut consumer = File::from(out_from);
        // Header, start and the frame: now it was read.
        let mut sealed = vec![0; 16 + 232 + 56 + 20 + 11];
        consumer.read_exact(&mut sealed).unwrap();
        File::from(say).write_all(b"!").unwrap();
        consumer.read_to_end(&mut sealed).unwrap();
        let outcome = sealing.join().unwrap();
        assert_eq!(outcome.unwrap_err().exit_code(), 130);
        sealed
    });
    drop(producer);
    let (outcome, opened) = open(&pair.opener(), &runtime, &sealed);
    outcome.unwrap();
    assert_eq!(opened, b"read before");
}

#[test]
fn a_consumer_that_leaves_is_noticed_though_the_producer_is_silent() {
    let (pair, runtime) = (Pair::new(), runtime());
    for workers in [1, 3] {
        let ((from, to), (out_from, out_to)) = (pipe(), pipe());
        let settings = Sealing { workers, ..Sealing::default() };
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| {
                let ends = Ends { input: from, output: out_to, stop: None };
                pipe::seal(ends, &pair.sealer(), &settings, &runtime)
            });
            let mut consumer = File::from(out_from);
            consumer.read_exact(&mut [0; 16]).unwrap();
            drop(consumer);
            assert_eq!(sealing.join().unwrap().unwrap_err().exit_code(), 44);
        });
        drop(to);
    }
}

/// The consumer takes the start and leaves; the producer has written enough for several workers and says nothing more.
#[test]
fn a_worker_that_cannot_write_ends_the_passage_though_the_leader_waits_for_input() {
    let (pair, runtime) = (Pair::new(), runtime());
    let ((from, to), (out_from, out_to)) = (pipe(), pipe());
    let (mut producer, settings) = (File::from(to), Sealing { workers: 4, ..Sealing::default() });
    std::thread::scope(|scope| {
        let sealing = scope.spawn(|| {
            let ends = Ends { input: from, output: out_to, stop: None };
            pipe::seal(ends, &pair.sealer(), &settings, &runtime)
        });
        File::from(out_from).read_exact(&mut [0; 16]).unwrap();
        let _ = producer.write_all(&content(4 << 20));
        assert_eq!(sealing.join().unwrap().unwrap_err().exit_code(), 44);
    });
}

#[test]
fn a_disk_that_fills_up_behind_the_pipe_is_reported_and_nothing_hangs() {
    let (pair, runtime) = (Pair::new(), runtime());
    let sealed = seal(&pair, &content(3 << 20), &one_worker());
    for workers in [1, 4] {
        let output = File::options().write(true).open("/dev/full").unwrap().into();
        let ends = Ends { input: file(&sealed), output, stop: None };
        assert_eq!(pipe::open(ends, &pair.opener(), workers, &runtime).unwrap_err().exit_code(), 43);
    }
}

#[test]
fn a_stream_on_a_socket_is_whole_when_it_says_so() {
    let (pair, runtime) = (Pair::new(), runtime());
    let sealed = seal(&pair, b"over a socket", &one_worker());
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.write_all(&sealed).unwrap();
    // The other side stays open.
    let (out_from, out_to) = pipe();
    pipe::open(Ends { input: theirs.into(), output: out_to, stop: None }, &pair.opener(), 2, &runtime)
        .unwrap();
    assert_eq!(read_all(out_from), b"over a socket");
    drop(ours);
}

#[test]
fn a_peer_that_closes_its_socket_is_noticed_though_the_producer_is_silent() {
    let (pair, runtime) = (Pair::new(), runtime());
    let ((from, to), (ours, mut theirs)) = (pipe(), std::os::unix::net::UnixStream::pair().unwrap());
    std::thread::scope(|scope| {
        let sealing = scope.spawn(|| {
            let ends = Ends { input: from, output: ours.into(), stop: None };
            pipe::seal(ends, &pair.sealer(), &one_worker(), &runtime)
        });
        theirs.read_exact(&mut [0; 304]).unwrap();
        drop(theirs);
        assert_eq!(sealing.join().unwrap().unwrap_err().exit_code(), 44);
    });
    drop(to);
}

#[test]
fn descriptors_that_do_not_block_are_waited_for() {
    let pair = Pair::new();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (middle, far) = std::os::unix::net::UnixStream::pair().unwrap();
    [&ours, &theirs, &middle, &far].into_iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let plain = content(5 << 20);
    let (out_from, out_to) = pipe();
    let runtime = runtime();
    std::thread::scope(|scope| {
        let (sent, plain) = (&ours, &plain);
        scope.spawn(move || {
            sent.set_nonblocking(false).unwrap();
            (&*sent).write_all(plain).unwrap();
            sent.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            let ends = Ends { input: theirs.into(), output: middle.into(), stop: None };
            pipe::seal(ends, &pair.sealer(), &Sealing::default(), &runtime).unwrap()
        });
        scope.spawn(|| {
            let ends = Ends { input: far.into(), output: out_to, stop: None };
            pipe::open(ends, &pair.opener(), 0, &runtime).unwrap()
        });
        assert!(read_all(out_from) == *plain);
    });
}
