//! Messages in pieces: which kinds come that way and what a message costs. That the pieces are right, the conformance
//! suite shows.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use wattlock_core::dev::{Harness, conform};
use wattlock_core::{
    Data, Description, Engine, EngineClass, Error, Family, Key, Kind, KindSet, Request, Stream,
    stream_known_answers,
};
use wattlock_cpu::detect::Cpu;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

#[test]
fn every_hash_and_every_aes_kind_of_one_pass_comes_in_pieces_and_no_other() {
    let engines: [&dyn Engine; 3] = [&Instruction::new(), &Instruction::with(Cpu::PLAIN), &Software::new()];
    for engine in engines {
        for kind in Kind::ALL {
            let tried = stream_known_answers(engine, *kind);
            let hash = kind.info().family == Family::Digest;
            match hash || kind.name().starts_with("aes-") && !kind.name().contains("-siv-") {
                true => assert!(tried.is_ok_and(|answers| answers > 0), "{}: {tried:?}", kind.name()),
                false => assert_eq!(tried, Err(Error::Unsupported), "{}", kind.name()),
            }
        }
    }
}

#[test]
fn a_stream_shows_no_secrets() {
    let engines: [&dyn Engine; 2] = [&Instruction::new(), &Software::new()];
    for engine in engines {
        for kind in [Kind::Aes128GcmSeal, Kind::Aes128Ctr] {
            let key = Key::symmetric(kind.info().algorithm, &[0xa7; 16]).unwrap();
            let text = format!("{:?}", engine.stream(kind, &key).unwrap());
            assert!(!text.contains("a7") && !text.contains("167"), "{text}");
        }
    }
}

/// What a stream does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    EachPieceBeginsAnew,
    AnyTagIsRight,
    ShortTagsAreRight,
    CopyHasNoMessage,
    LateAssociatedDataIsIgnored,
    EndComesTwice,
    NonceCutTo12,
    InPlaceOnly,
}

/// `instruction` for three kinds, with a flaw in its streams.
struct Flawed {
    inner: Instruction,
    description: Description,
    flaw: Flaw,
}

impl Engine for Flawed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        if !self.description.inline.contains(request.kind) {
            return Err(Error::Unsupported);
        }
        self.inner.execute(request)
    }

    fn stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        let inner = self.inner.stream(kind, key)?;
        Ok(Box::new(FlawedStream { inner, flaw: self.flaw, nonce: Vec::new() }))
    }
}

#[derive(Debug)]
struct FlawedStream {
    inner: Box<dyn Stream>,
    flaw: Flaw,
    nonce: Vec<u8>,
}

impl Stream for FlawedStream {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        let gcm = self.kind().info().tag > 0;
        let cut = self.flaw == Flaw::NonceCutTo12 && gcm && nonce.len() > 12;
        self.nonce = if cut { nonce[..12].to_vec() } else { nonce.to_vec() };
        self.inner.start(&self.nonce)
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let taken = self.inner.aad(bytes);
        match taken {
            Err(Error::Invalid("associated data after data"))
                if self.flaw == Flaw::LateAssociatedDataIsIgnored =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        let short = matches!(&data, Data::Apart { from, to } if to.len() < from.len());
        if self.flaw == Flaw::EachPieceBeginsAnew && self.kind() == Kind::Aes128Ctr && !self.nonce.is_empty()
        {
            self.inner.start(&self.nonce)?;
        }
        match data {
            Data::Apart { from, to } if self.flaw == Flaw::InPlaceOnly && !short => {
                to[..from.len()].copy_from_slice(from);
                let len = (from.len() + 1).min(to.len());
                self.inner.update(Data::InPlace(&mut to[..len])).map(|_| from.len())
            }
            data => self.inner.update(data),
        }
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        let ended = self.inner.finish(tag);
        match (ended, self.flaw) {
            (Err(Error::Authentication), Flaw::AnyTagIsRight) => Ok(()),
            (Err(Error::Authentication), Flaw::ShortTagsAreRight) if tag.len() < 16 => Ok(()),
            (Err(Error::Invalid("no message was begun")), Flaw::EndComesTwice) => Ok(()),
            (ended, _) => ended,
        }
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        let mut inner = self.inner.try_clone()?;
        if self.flaw == Flaw::CopyHasNoMessage {
            inner.start(&self.nonce)?;
        }
        Ok(Box::new(FlawedStream { inner, flaw: self.flaw, nonce: self.nonce.clone() }))
    }
}

#[test]
fn the_suite_finds_every_flaw_of_a_stream_and_none_where_there_is_none() {
    let find = |flaw| {
        let inline = KindSet::of(&[Kind::Aes128Ctr, Kind::Aes128GcmSeal, Kind::Aes128GcmOpen]);
        let (class, queued, detail) = (EngineClass::Instruction, KindSet::EMPTY, String::new());
        let description = Description { name: "flawed", class, inline, queued, detail };
        let engine = Flawed { inner: Instruction::new(), description, flaw };
        let harness = Harness { longest: 20_000, ..Harness::default() };
        catch_unwind(AssertUnwindSafe(|| conform(&engine, &Software::new(), &harness)))
            .map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
    };
    assert_eq!(find(Flaw::None).unwrap().streams, 3);
    for (flaw, word) in [
        (Flaw::EachPieceBeginsAnew, "known answers in pieces"),
        (Flaw::AnyTagIsRight, "known answers in pieces"),
        (Flaw::ShortTagsAreRight, "bytes of tag"),
        (Flaw::CopyHasNoMessage, "in pieces"),
        (Flaw::LateAssociatedDataIsIgnored, "associated data after data"),
        (Flaw::EndComesTwice, "an end before a message"),
        (Flaw::NonceCutTo12, "of nonce"),
        (Flaw::InPlaceOnly, "apart"),
    ] {
        let found = find(flaw).expect_err("a flaw must be found");
        assert!(found.contains(word), "{flaw:?} was found as: {found}");
    }
}

/// Nanoseconds a call of `work`, the best of several runs.
fn best(bytes: usize, mut work: impl FnMut()) -> f64 {
    let rounds = (40_000_000 / (bytes + 500)) as u32;
    let run = |_| {
        let begun = Instant::now();
        (0..rounds).for_each(|_| work());
        begun.elapsed().as_nanos() as f64 / f64::from(rounds)
    };
    (0..9).map(run).fold(f64::MAX, f64::min)
}

fn message(stream: &mut dyn Stream, nonce: &[u8], aad: &[u8], data: &mut [u8], tag: &mut [u8]) {
    stream.start(nonce).unwrap();
    if !aad.is_empty() {
        stream.aad(aad).unwrap();
    }
    stream.update(Data::InPlace(data)).unwrap();
    stream.finish(tag).unwrap();
}

#[test]
#[ignore = "a measurement, to be run alone: prints nanoseconds a message, whole and in pieces"]
fn cost_of_a_message() {
    let engine = Instruction::new();
    let kinds = [Kind::Aes256GcmSeal, Kind::Aes128Ctr, Kind::Aes256CbcDecrypt, Kind::Aes256XtsEncrypt];
    for kind in kinds {
        let info = kind.info();
        let bytes: Vec<u8> = (0..info.algorithm.key_len().unwrap() as u8).collect();
        let key = Key::symmetric(info.algorithm, &bytes).unwrap();
        let (nonce, aad): (&[u8], &[u8]) = if info.tag > 0 { (&[1; 12], &[2; 13]) } else { (&[3; 16], &[]) };
        let mut stream = engine.stream(kind, &key).unwrap();
        for len in [64, 1024, 16384, 65536] {
            let (mut data, mut tag) = (vec![0u8; len], vec![0u8; info.tag]);
            let pieces = best(len, || message(&mut *stream, nonce, aad, &mut data, &mut tag));
            let whole = best(len, || {
                let request = Request::new(kind, &key, Data::InPlace(&mut data));
                engine.execute(&mut Request { nonce, aad, tag: &mut tag, ..request }).unwrap();
            });
            stream.start(nonce).unwrap();
            let more = best(len, || {
                stream.update(Data::InPlace(&mut data)).unwrap();
            });
            println!(
                "{} {len} bytes: whole {whole:.1} ns, in pieces {pieces:.1} ns ({:.2} GB/s, {:.3} of whole), \
                 one more piece {more:.1} ns",
                kind.name(),
                len as f64 / pieces,
                whole / pieces
            );
        }
    }
}
