//! Messages in pieces through the runtime: which engine makes the stream, and what is counted.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use wattlock::core::stream_known_answers;
use wattlock::policy::Settings;
use wattlock::{Builder, Runtime};
use wattlock_core::{
    Algorithm, Data, Description, Engine, EngineClass, Error, Fault, Key, Kind, KindSet, Request, Stream,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;

fn builder(policy: &str) -> Builder {
    Runtime::builder().policy(policy, Settings::default()).telemetry(false)
}

fn key(kind: Kind) -> Key {
    let bytes: Vec<u8> = (0..kind.info().algorithm.key_len().unwrap() as u8).collect();
    Key::symmetric(kind.info().algorithm, &bytes).unwrap()
}

/// Which engines were counted for, with messages and bytes.
fn counted(runtime: &Runtime) -> Vec<(String, u64, u64)> {
    let cells = runtime.snapshot().cells;
    cells.into_iter().map(|cell| (cell.engine, cell.requests, cell.bytes)).collect()
}

#[test]
fn a_message_in_pieces_is_the_engines_and_is_counted_when_its_owner_says_so() {
    let runtime = builder("adaptive").build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let key = key(Kind::Aes256GcmSeal);
    let mut stream = dispatcher.open_stream(Kind::Aes256GcmSeal, &key).unwrap();
    let (mut pieces, mut tag) = (vec![7; 1000], [0; 16]);
    stream.start(&[3; 12]).unwrap();
    stream.aad(b"he").unwrap();
    stream.aad(b"ad").unwrap();
    for piece in pieces.chunks_mut(77) {
        stream.update(Data::InPlace(piece)).unwrap();
    }
    stream.finish(&mut tag).unwrap();
    let (mut whole, mut whole_tag) = (vec![7; 1000], [0; 16]);
    let request = Request::new(Kind::Aes256GcmSeal, &key, Data::InPlace(&mut whole));
    let mut request = Request { nonce: &[3; 12], aad: b"head", tag: &mut whole_tag, ..request };
    Software::new().execute(&mut request).unwrap();
    assert_eq!((pieces, tag), (whole, whole_tag));
    assert!(counted(&runtime).is_empty());
    dispatcher.streamed(Kind::Aes256GcmSeal, 2, 1500);
    dispatcher.streamed(Kind::Aes256GcmSeal, 1, 500);
    assert_eq!(counted(&runtime), [("instruction".to_owned(), 3, 2000)]);
}

#[test]
fn a_kind_or_a_key_that_does_not_fit_is_refused() {
    let runtime = builder("adaptive").build().unwrap();
    let mut dispatcher = runtime.dispatcher();
    let secret = Key::symmetric(Algorithm::Secret, &[1; 32]).unwrap();
    let none = dispatcher.open_stream(Kind::HmacSha256, &secret);
    assert_eq!(none.err(), Some(Error::Unsupported));
    dispatcher.streamed(Kind::HmacSha256, 1, 1);
    assert!(counted(&runtime).is_empty());
    let other = key(Kind::Aes128GcmSeal);
    assert_eq!(
        dispatcher.open_stream(Kind::Aes256GcmSeal, &other).err(),
        Some(Error::Invalid("key algorithm"))
    );
}

/// `instruction` in everything but its streams.
struct Flawed {
    inner: Instruction,
    description: Description,
    wrong: bool,
}

impl Flawed {
    fn new(wrong: bool) -> Arc<Flawed> {
        let class = EngineClass::Instruction;
        let inline = KindSet::of(&[Kind::Aes128Ctr]);
        let description =
            Description { name: "flawed", class, inline, queued: KindSet::EMPTY, detail: String::new() };
        Arc::new(Flawed { inner: Instruction::new(), description, wrong })
    }
}

impl Engine for Flawed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.inner.execute(request)
    }

    fn stream(&self, kind: Kind, key: &Key) -> Result<Box<dyn Stream>, Error> {
        if self.wrong {
            Ok(Box::new(Forgets(self.inner.stream(kind, key)?, vec![])))
        } else {
            Err(Error::Unsupported)
        }
    }
}

/// Begins anew with each piece.
#[derive(Debug)]
struct Forgets(Box<dyn Stream>, Vec<u8>);

impl Stream for Forgets {
    fn kind(&self) -> Kind {
        self.0.kind()
    }

    fn start(&mut self, nonce: &[u8]) -> Result<(), Error> {
        self.1 = nonce.to_vec();
        self.0.start(nonce)
    }

    fn aad(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.aad(bytes)
    }

    fn update(&mut self, data: Data<'_>) -> Result<usize, Error> {
        self.0.start(&self.1)?;
        self.0.update(data)
    }

    fn finish(&mut self, tag: &mut [u8]) -> Result<(), Error> {
        self.0.finish(tag)
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Forgets(self.0.try_clone()?, self.1.clone())))
    }
}

#[test]
fn an_engine_whose_streams_fail_their_test_makes_none() {
    assert_eq!(
        stream_known_answers(&*Flawed::new(true), Kind::Aes128Ctr),
        Err(Error::Device(Fault::WrongResult))
    );
    for wrong in [true, false] {
        let engines: Vec<Arc<dyn Engine>> =
            vec![Flawed::new(wrong), Arc::new(Instruction::new()), Arc::new(Software::new())];
        let runtime = builder("adaptive").engines(engines).build().unwrap();
        let mut dispatcher = runtime.dispatcher();
        dispatcher.open_stream(Kind::Aes128Ctr, &key(Kind::Aes128Ctr)).unwrap();
        dispatcher.streamed(Kind::Aes128Ctr, 1, 1);
        assert_eq!(counted(&runtime), [("instruction".to_owned(), 1, 1)]);
    }
}
