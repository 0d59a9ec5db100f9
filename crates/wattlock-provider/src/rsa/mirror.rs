//! An operation as the other provider would do it: the same key, the same parameters in the same order. It is made
//! when it is first needed, because most operations never need it.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use super::key::Key;
use crate::child::{Operation, PkeyCtx};
use crate::params::{Answers, Params, Questions, Recorded};
use crate::sys::PARAM_UTF8;

/// The operation, made or yet to be made.
pub struct Mirror {
    key: Arc<Key>,
    operation: Operation,
    /// Every list of parameters that was accepted.
    accepted: Vec<Arc<Recorded>>,
    made: Option<PkeyCtx>,
}

impl Mirror {
    /// Yet to be made.
    pub fn new(key: Arc<Key>, operation: Operation) -> Mirror {
        Mirror { key, operation, accepted: Vec::new(), made: None }
    }

    /// The key.
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// The operation in its present state; `None`, with the other provider's errors on the queue, if it refuses.
    pub fn context(&mut self) -> Option<&PkeyCtx> {
        if self.made.is_none() {
            let context = PkeyCtx::by_key(self.key.child(), self.key.elsewhere()?)?;
            let begun = context.begin(self.operation, Params::EMPTY);
            if !begun || !self.accepted.iter().all(|list| context.set(list.params())) {
                return None;
            }
            self.made = Some(context);
        }
        self.made.as_ref()
    }

    /// Whether it is made.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Uses an operation that is in the state this one would be made in.
    pub fn adopt(&mut self, context: PkeyCtx) {
        self.made = Some(context);
    }

    /// Gives the operation away. It is made anew if it is needed again.
    pub fn release(&mut self) -> Option<PkeyCtx> {
        self.made.take()
    }

    /// What it is for.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Sets parameters there, as far as the other provider accepts them.
    pub fn set(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        let Some(context) = self.context() else { return false };
        context.set(params) && self.remember(params)
    }

    /// Keeps parameters that are known to be acceptable for when the operation is made.
    pub fn note(&mut self, params: Params<'_>) -> bool {
        if params.is_empty() {
            return true;
        }
        if self.made.is_some() {
            return self.set(params);
        }
        self.remember(params)
    }

    fn remember(&mut self, params: Params<'_>) -> bool {
        let Some(copy) = Recorded::of(params) else { return false };
        self.accepted.push(Arc::new(copy));
        true
    }

    /// Asks the other provider.
    pub fn get(&mut self, answers: &mut Answers<'_>) -> bool {
        self.context().is_some_and(|context| context.get(answers) > 0)
    }

    /// A number the other provider knows by that name.
    pub fn number(&mut self, key: &CStr) -> Option<i64> {
        let mut value: c_int = 0;
        let mut list = Questions::new().int(key, &mut value);
        let answered = self.get(&mut list.answers()) && list.returned(key).is_some();
        answered.then_some(i64::from(value))
    }

    /// A text the other provider knows by that name.
    pub fn text(&mut self, key: &CStr) -> Option<String> {
        let mut room = [0_u8; 256];
        let mut list = Questions::new().value(key, PARAM_UTF8, &mut room);
        let answered = self.get(&mut list.answers()) && list.returned(key).is_some();
        let len = room.iter().position(|byte| *byte == 0).filter(|_| answered)?;
        std::str::from_utf8(&room[..len]).ok().map(str::to_owned)
    }

    /// The same in the same state. The copy is made anew when it is needed.
    pub fn duplicate(&self) -> Mirror {
        Mirror {
            key: self.key.clone(),
            operation: self.operation,
            accepted: self.accepted.clone(),
            made: None,
        }
    }
}
