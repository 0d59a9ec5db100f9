//! Why there is no policy: always the operator's words, never a request's fault.

/// What is wrong with a policy's name, its settings, or the machine it was offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has that name.
    #[error("unknown policy {name:?}; known are {}", crate::NAMES.join(", "))]
    UnknownPolicy {
        /// The name asked for.
        name: String,
    },
    /// A setting without an equals sign.
    #[error("setting {text:?} is not of the form key=value")]
    NotAPair {
        /// The text given.
        text: String,
    },
    /// No setting has that key.
    #[error("unknown setting {key:?}; known are {}", crate::Settings::KEYS.join(", "))]
    UnknownKey {
        /// The key given.
        key: String,
    },
    /// The value is not a number, or not an allowed one.
    #[error("setting {key}: {value:?} is not allowed; allowed is {range}")]
    BadValue {
        /// Which setting.
        key: &'static str,
        /// The value given.
        value: String,
        /// What is allowed, for people.
        range: String,
    },
    /// The machine's description breaks [`crate::Machine`]'s own rules.
    #[error("machine description: {0}")]
    BadMachine(&'static str),
}
