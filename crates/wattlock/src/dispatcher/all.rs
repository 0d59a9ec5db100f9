//! Many borrowed requests in one call, which waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wattlock_core::{Completion, Data, Error, Fault, OwnedRequest, Request, Token};
use wattlock_policy::EngineId;

use super::Dispatcher;
use crate::health::Reason;
use crate::sys::fork;

impl Dispatcher {
    /// Does all of the requests and returns when all are done; `results[i]` belongs to `requests[i]`. What the policy
    /// sends to an engine with queues works there on copies while this thread does the rest. Blocks the calling
    /// thread (sleeping, not spinning, once waits get long), at most until the runtime's time-out.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn run_all(&mut self, requests: &mut [Request<'_>], results: &mut [Result<usize, Error>]) {
        assert_eq!(requests.len(), results.len(), "one result for each request");
        let queued_kinds = self.runtime.queued_kinds();
        let mut strangers = VecDeque::new();
        if self.in_flight.len() > 0 {
            // A caller that uses nothing but this would otherwise never hear of the tests its first call started.
            self.poll(&mut |completion| strangers.push_back(completion));
        }
        let mut pending: Vec<(Token, EngineId, usize)> = Vec::new();
        for (index, request) in requests.iter_mut().enumerate() {
            if !queued_kinds.contains(request.kind) {
                results[index] = self.run(request);
                continue;
            }
            match self.run_or_enqueue(request) {
                Ok(result) => results[index] = result,
                Err((token, engine)) => pending.push((token, engine, index)),
            }
        }
        self.flush();
        let mut patience = Patience::default();
        while !pending.is_empty() {
            let mut arrived = Vec::new();
            if self.poll(&mut |completion| arrived.push(completion)) == 0 {
                patience.wait();
                continue;
            }
            patience = Patience::default();
            for completion in arrived {
                match pending.iter().position(|(token, ..)| *token == completion.token) {
                    Some(at) => {
                        let (_, engine, index) = pending.swap_remove(at);
                        results[index] = match completion.result {
                            // Its copy was lost; the original is here.
                            Err(Error::Device(_)) => {
                                self.elsewhere(engine, Reason::Lost, &mut requests[index])
                            }
                            _ => deliver(&completion, &mut requests[index]),
                        };
                    }
                    None => strangers.push_back(completion),
                }
            }
        }
        // Other callers' completions that came out meanwhile are still theirs.
        strangers.append(&mut self.ready);
        self.ready = strangers;
    }

    /// Does a borrowed request now, or enqueues a copy of it.
    fn run_or_enqueue(
        &mut self,
        request: &mut Request<'_>,
    ) -> Result<Result<usize, Error>, (Token, EngineId)> {
        if let Err(error) = request.validate() {
            return Ok(Err(error));
        }
        if self.generation != fork::generation() {
            self.after_fork();
        }
        let now = self.look();
        let shape = request.shape();
        let choice = self.choose(&shape, now);
        let Some(station) = self.stations.get(choice.engine.index()) else {
            return Ok(Err(Error::Unsupported));
        };
        if !station.queued.contains(shape.kind) {
            return Ok(self.run_with_care(choice.engine, &shape, request));
        }
        let key = Arc::new(request.key.clone());
        let mut copy =
            OwnedRequest::new(shape.kind, key, request.data.input().to_vec(), request.data.output().len());
        copy.nonce = request.nonce.to_vec();
        copy.aad = request.aad.to_vec();
        copy.options = request.options;
        copy.class = request.class;
        if let Some(tag) = copy.tag.get_mut(..request.tag.len()) {
            tag.copy_from_slice(request.tag);
        }
        match self.enqueue(&choice, &shape, copy, now) {
            Ok(token) => Err((token, choice.engine)),
            Err((reason, _)) => Ok(self.elsewhere(choice.engine, reason, request)),
        }
    }
}

/// Copies a completion's result into the borrowed request it was made from.
fn deliver(completion: &Completion, request: &mut Request<'_>) -> Result<usize, Error> {
    let len = completion.result?;
    let from = completion.request.output.get(..len).ok_or(Error::Device(Fault::WrongResult))?;
    let output = match &mut request.data {
        Data::InPlace(buffer) => &mut **buffer,
        Data::Apart { to, .. } => &mut **to,
    };
    output.get_mut(..len).ok_or(Error::Device(Fault::WrongResult))?.copy_from_slice(from);
    let tag = completion.request.tag.get(..request.tag.len()).ok_or(Error::Device(Fault::WrongResult))?;
    request.tag.copy_from_slice(tag);
    Ok(len)
}

/// How a blocked caller waits: a few spins for what is nearly there, then yields, then short sleeps.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..32 => std::hint::spin_loop(),
            32..64 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(u64::from(self.0.min(264) - 63) / 4 + 5)),
        }
    }
}
