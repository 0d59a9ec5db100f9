//! The conformance suite passes a right engine and fails every wrong one. The engine is a toy on third-party
//! implementations; each test breaks one promise and names the words the suite must fail with.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes128Gcm, KeyInit};
use sha2::{Digest, Sha256};
use wattlock_core::dev::{Harness, Summary, conform};
use wattlock_core::{
    Completion, Cost, Data, Description, Engine, EngineClass, Error, Fault, Instance, Item, Kind, KindSet,
    Nanos, OwnedRequest, Refused, Request, Token, Window,
};

const KINDS: KindSet = KindSet::of(&[Kind::Aes128GcmSeal, Kind::Aes128GcmOpen, Kind::Sha256, Kind::Deflate]);

/// What the toy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    OneLengthWrong,
    LongAadIgnored,
    PlaintextReleased,
    TagCutShort,
    WritesTooFar,
    InPlaceWrong,
    CheckBlind,
    CheckSquints,
    DeflateCut,
    DeflateNeverEnds,
    DeflateMisaligned,
    ClaimsNothingRefuses,
    DeclinesTooLate,
    WindowMisannounced,
    CompletesTwice,
    LosesOne,
    ChangesInput,
    WindowExceeded,
    WithdrawsAndCompletes,
    StopForgets,
    MiscountsPoll,
    SecondOfABatchWrong,
    BatchFailsTogether,
    SkipsTheLast,
    RightInBatches,
}

struct Toy {
    flaw: Flaw,
    description: Description,
}

fn toy(flaw: Flaw, queued: bool) -> Toy {
    let (inline, queued) = if queued { (KindSet::EMPTY, KINDS) } else { (KINDS, KindSet::EMPTY) };
    let class = EngineClass::Software;
    Toy { flaw, description: Description { name: "toy", class, inline, queued, detail: String::new() } }
}

impl Engine for Toy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        if !self.description.inline.contains(request.kind) {
            if self.flaw == Flaw::DeclinesTooLate {
                request.data.output().fill(0);
            }
            return if self.flaw == Flaw::ClaimsNothingRefuses { Ok(0) } else { Err(Error::Unsupported) };
        }
        compute(self.flaw, request)
    }

    fn width(&self, _: Kind) -> u16 {
        let together =
            [Flaw::SecondOfABatchWrong, Flaw::BatchFailsTogether, Flaw::SkipsTheLast, Flaw::RightInBatches];
        if together.contains(&self.flaw) { 4 } else { 1 }
    }

    fn execute_all(&self, items: &mut [Item<'_>]) {
        items.iter_mut().for_each(|item| item.result = self.execute(&mut item.request));
        let failed = items.iter().any(|item| item.result.is_err());
        match (self.flaw, items) {
            (Flaw::SecondOfABatchWrong, [_, second, ..]) => {
                second.request.data.output().iter_mut().take(1).for_each(|byte| *byte ^= 1);
            }
            (Flaw::SkipsTheLast, [_, .., last]) => last.result = Err(Error::Unsupported),
            (Flaw::BatchFailsTogether, items @ [_, _, ..]) if failed => {
                items.iter_mut().for_each(|item| item.result = Err(Error::Authentication));
            }
            _ => {}
        }
    }

    fn window(&self) -> Window {
        let requests =
            if matches!(self.flaw, Flaw::WindowExceeded | Flaw::WindowMisannounced) { 7 } else { 8 };
        Window { requests, bytes: 4 << 20 }
    }

    fn open(&self, _: Nanos) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(Queue { flaw: self.flaw, held: VecDeque::new(), ready: VecDeque::new(), stopped: false }))
    }

    fn check(&self, request: &OwnedRequest, len: usize) -> Result<(), Error> {
        if self.flaw == Flaw::CheckBlind {
            return Ok(());
        }
        let wrong = Err(Error::Device(Fault::WrongResult));
        if self.flaw == Flaw::CheckSquints {
            return wrong;
        }
        if request.kind == Kind::Deflate {
            return inflates(request, len);
        }
        let mut again =
            OwnedRequest::new(request.kind, request.key.clone(), request.input.clone(), request.output.len());
        again.nonce = request.nonce.clone();
        again.aad = request.aad.clone();
        again.tag = request.tag;
        let right = compute(Flaw::None, &mut again.view())?;
        let same = right == len && again.output[..len] == request.output[..len] && again.tag == request.tag;
        if same { Ok(()) } else { wrong }
    }
}

/// Streams that are not at their end are completed by an empty last block (RFC 1951 section 3.2.4).
fn inflates(request: &OwnedRequest, len: usize) -> Result<(), Error> {
    // The dictionary as a stored block (RFC 1951 section 3.2.4) before the stream.
    let count = request.aad.len() as u16;
    let mut stream = [&[0][..], &count.to_le_bytes(), &(!count).to_le_bytes(), &request.aad].concat();
    stream.extend_from_slice(&request.output[..len]);
    if !request.options.last {
        stream.extend([0x01, 0x00, 0x00, 0xff, 0xff]);
    }
    match miniz_oxide::inflate::decompress_to_vec(&stream) {
        Ok(text) if text == [&request.aad[..], &request.input].concat() => Ok(()),
        _ => Err(Error::Device(Fault::WrongResult)),
    }
}

fn compute(flaw: Flaw, request: &mut Request<'_>) -> Result<usize, Error> {
    match request.kind {
        Kind::Sha256 => digest(flaw, request),
        Kind::Deflate => deflate(flaw, request),
        _ => gcm(flaw, request),
    }
}

fn digest(flaw: Flaw, request: &mut Request<'_>) -> Result<usize, Error> {
    let mut hash = Sha256::digest(request.data.input());
    if flaw == Flaw::OneLengthWrong && request.data.len() == 4097 {
        hash[31] ^= 1;
    }
    let end = if flaw == Flaw::WritesTooFar && request.data.output().len() > 32 { 33 } else { 32 };
    let output = request.data.output();
    output[..end].fill(0);
    output[..32].copy_from_slice(&hash);
    Ok(32)
}

fn deflate(flaw: Flaw, request: &mut Request<'_>) -> Result<usize, Error> {
    use miniz_oxide::deflate::core::{
        CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
    };
    let mut compressor =
        CompressorOxide::new(create_comp_flags_from_zip_params(request.options.level.into(), 0, 0));
    let last = request.options.last && flaw != Flaw::DeflateNeverEnds;
    let flush = if last { TDEFLFlush::Finish } else { TDEFLFlush::Sync };
    let mut out = Vec::new();
    let mut compress = |input, flush| {
        out.clear();
        compress_to_output(&mut compressor, input, flush, |bytes| {
            out.extend_from_slice(bytes);
            true
        });
    };
    // What follows the dictionary refers to it, and begins on a byte boundary.
    if !request.aad.is_empty() {
        compress(request.aad, TDEFLFlush::Sync);
    }
    compress(request.data.input(), flush);
    if flaw == Flaw::DeflateCut && request.data.len() > 60_000 {
        out.pop();
    }
    let to = request.data.output();
    if flaw == Flaw::DeflateMisaligned && !(to.as_ptr() as usize).is_multiple_of(2) {
        out.pop();
    }
    to.get_mut(..out.len()).ok_or(Error::Invalid("output length"))?.copy_from_slice(&out);
    Ok(out.len())
}

fn gcm(flaw: Flaw, request: &mut Request<'_>) -> Result<usize, Error> {
    let cipher = Aes128Gcm::new_from_slice(request.key.bytes()).unwrap();
    let nonce = request.nonce.into();
    let aad = if flaw == Flaw::LongAadIgnored && request.aad.len() > 256 { &[] } else { request.aad };
    let in_place = matches!(request.data, Data::InPlace(_));
    let buffer = request.data.gathered();
    if request.kind == Kind::Aes128GcmSeal {
        let tag = cipher.encrypt_in_place_detached(nonce, aad, buffer).unwrap();
        request.tag.copy_from_slice(&tag);
        if flaw == Flaw::InPlaceWrong && in_place {
            buffer[0] ^= 1;
        }
        return Ok(buffer.len());
    }
    let mut right = buffer.to_vec();
    // Counter mode: decryption is encryption.
    cipher.encrypt_in_place_detached(nonce, b"", &mut right).unwrap();
    let mut again = right.clone();
    let tag = cipher.encrypt_in_place_detached(nonce, aad, &mut again).unwrap();
    let compared = if flaw == Flaw::TagCutShort { 12 } else { 16 };
    if tag[..compared] != request.tag[..compared] {
        buffer.fill(0);
        if flaw == Flaw::PlaintextReleased {
            buffer.copy_from_slice(&right);
        }
        return Err(Error::Authentication);
    }
    buffer.copy_from_slice(&right);
    Ok(buffer.len())
}

/// A queue that computes in `poll`.
struct Queue {
    flaw: Flaw,
    held: VecDeque<(Token, OwnedRequest)>,
    ready: VecDeque<(Token, OwnedRequest)>,
    stopped: bool,
}

impl Instance for Queue {
    fn window(&self) -> Window {
        Window { requests: if self.flaw == Flaw::WindowExceeded { 7 } else { 8 }, bytes: 4 << 20 }
    }

    fn in_flight(&self) -> u32 {
        (self.held.len() + self.ready.len()) as u32
    }

    fn held(&self) -> u32 {
        self.held.len() as u32
    }

    fn submit(&mut self, token: Token, request: OwnedRequest, _: Nanos) -> Result<(), Refused> {
        let error = match self.in_flight() {
            _ if self.stopped => Error::Device(Fault::Lost),
            _ if !KINDS.contains(request.kind) => Error::Unsupported,
            8.. => Error::Full,
            _ => {
                self.held.push_back((token, request));
                return Ok(());
            }
        };
        Err(Refused { error, request })
    }

    fn flush(&mut self, _: Nanos) {
        self.ready.append(&mut self.held);
    }

    fn poll(&mut self, _: Nanos, done: &mut dyn FnMut(Completion)) -> usize {
        let finished = self.ready.len().min(3);
        for (token, mut request) in self.ready.drain(..finished) {
            let result = if self.stopped {
                Err(Error::Device(Fault::Lost))
            } else {
                compute(self.flaw, &mut request.view())
            };
            if self.flaw == Flaw::ChangesInput && !request.input.is_empty() {
                request.input[0] ^= 1;
            }
            if self.flaw == Flaw::CompletesTwice && token.0 == 1 {
                let again = OwnedRequest::new(request.kind, request.key.clone(), request.input.clone(), 0);
                done(Completion { token, request: again, result, cost: Cost::default() });
            }
            if self.flaw == Flaw::LosesOne && token.0 == 1 {
                continue;
            }
            done(Completion { token, request, result, cost: Cost::default() });
        }
        finished + usize::from(self.flaw == Flaw::MiscountsPoll && finished == 3)
    }

    fn withdraw(&mut self, token: Token, _: Nanos) -> Option<OwnedRequest> {
        let queue =
            if self.held.iter().any(|entry| entry.0 == token) { &mut self.held } else { &mut self.ready };
        let at = queue.iter().position(|entry| entry.0 == token)?;
        if self.flaw == Flaw::WithdrawsAndCompletes {
            let entry = &queue[at].1;
            let mut again =
                OwnedRequest::new(entry.kind, entry.key.clone(), entry.input.clone(), entry.output.len());
            again.nonce = entry.nonce.clone();
            again.aad = entry.aad.clone();
            return Some(again);
        }
        queue.remove(at).map(|entry| entry.1)
    }

    fn stop(&mut self, _: Nanos) {
        self.stopped = true;
        if self.flaw == Flaw::StopForgets {
            self.held.clear();
        }
        self.ready.append(&mut self.held);
    }
}

fn run(flaw: Flaw, queued: bool) -> Result<Summary, String> {
    let (engine, reference) = (toy(flaw, queued), toy(Flaw::None, false));
    let harness = Harness { patience: 1000, ..Harness::default() };
    catch_unwind(AssertUnwindSafe(|| conform(&engine, &reference, &harness))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
    })
}

fn fails_with(flaw: Flaw, queued: bool, words: &[&str]) {
    let message = run(flaw, queued).expect_err("the suite passes a broken engine");
    for word in words {
        assert!(message.contains(word), "{flaw:?} fails with: {message}");
    }
}

#[test]
fn right_engine_passes_inline() {
    let summary = run(Flaw::None, false).unwrap();
    assert_eq!(summary.kinds, 4);
    assert!(summary.requests > 1000, "{summary:?}");
}

#[test]
fn right_engine_passes_queued() {
    assert!(run(Flaw::None, true).unwrap().requests > 500);
}

#[test]
fn failure_names_kind_case_and_seed() {
    fails_with(Flaw::OneLengthWrong, false, &["toy: sha-256", "4097 bytes", "seed 0x776174746c6f636b"]);
}

#[test]
fn one_wrong_length_is_found() {
    fails_with(Flaw::OneLengthWrong, true, &["sha-256", "4097 bytes"]);
}

#[test]
fn ignored_associated_data_is_found() {
    fails_with(Flaw::LongAadIgnored, false, &["aes-128-gcm"]);
}

#[test]
fn released_plaintext_is_found() {
    fails_with(Flaw::PlaintextReleased, false, &["aes-128-gcm-open", "neither wiped nor untouched"]);
}

#[test]
fn truncated_tag_comparison_is_found() {
    fails_with(Flaw::TagCutShort, false, &["aes-128-gcm-open"]);
}

#[test]
fn stray_write_is_found() {
    fails_with(Flaw::WritesTooFar, false, &["sha-256", "bytes after the result"]);
}

#[test]
fn wrong_result_in_place_is_found() {
    fails_with(Flaw::InPlaceWrong, false, &["aes-128-gcm-seal", "in place"]);
}

#[test]
fn check_that_accepts_everything_is_found() {
    fails_with(Flaw::CheckBlind, false, &["accepts a wrong result"]);
}

#[test]
fn check_that_refuses_everything_is_found() {
    fails_with(Flaw::CheckSquints, false, &["refuses the right result"]);
}

#[test]
fn stream_cut_short_is_found() {
    fails_with(Flaw::DeflateCut, false, &["deflate"]);
}

#[test]
fn stream_that_never_ends_is_found() {
    fails_with(Flaw::DeflateNeverEnds, false, &["deflate"]);
}

#[test]
fn wrong_result_in_a_misaligned_buffer_is_found() {
    fails_with(Flaw::DeflateMisaligned, false, &["deflate", "apart, offsets"]);
}

#[test]
fn execution_of_an_unclaimed_kind_is_found() {
    fails_with(Flaw::ClaimsNothingRefuses, false, &["unclaimed"]);
}

#[test]
fn declining_after_touching_the_buffers_is_found() {
    fails_with(Flaw::DeclinesTooLate, false, &["touched"]);
}

#[test]
fn another_window_than_announced_is_found() {
    fails_with(Flaw::WindowMisannounced, true, &["announced"]);
}

#[test]
fn second_completion_is_found() {
    fails_with(Flaw::CompletesTwice, true, &["twice"]);
}

#[test]
fn lost_request_is_found() {
    fails_with(Flaw::LosesOne, true, &["poll"]);
}

#[test]
fn changed_input_is_found() {
    fails_with(Flaw::ChangesInput, true, &["input"]);
}

#[test]
fn exceeded_window_is_found() {
    fails_with(Flaw::WindowExceeded, true, &["window"]);
}

#[test]
fn withdrawn_request_that_completes_is_found() {
    fails_with(Flaw::WithdrawsAndCompletes, true, &["withdrawal"]);
}

#[test]
fn requests_forgotten_by_stop_are_found() {
    fails_with(Flaw::StopForgets, true, &["stop"]);
}

#[test]
fn miscounted_poll_is_found() {
    fails_with(Flaw::MiscountsPoll, true, &["miscounts"]);
}

#[test]
fn right_engine_passes_in_batches() {
    assert!(run(Flaw::RightInBatches, false).unwrap().requests > 2000);
}

#[test]
fn request_of_a_batch_that_is_left_out_is_found() {
    fails_with(Flaw::SkipsTheLast, false, &["Together"]);
}

#[test]
fn wrong_result_within_a_batch_is_found() {
    fails_with(Flaw::SecondOfABatchWrong, false, &["Together"]);
}

#[test]
fn batch_that_fails_with_one_of_its_requests_is_found() {
    fails_with(Flaw::BatchFailsTogether, false, &["aes-128-gcm-open", "Together"]);
}
