//! Does a branch or an address depend on a key or on plaintext? Every engine of this CPU under valgrind's memcheck, which is told
//! that these bytes are undefined: it then reports each jump and each address that is computed from one.
//!
//! `scripts/test/secrets.sh` builds and runs it. After Langley's ctgrind (2010).
//!
//! Each kind with symmetric keys or without any (ciphers, sealing, opening, hashes, MACs, key derivation), and encapsulation
//! and decapsulation of ML-KEM, is done once with defined bytes, for the expected result, and then with a fresh key whose material is undefined, so that expanding it is
//! watched, too. Lengths, nonces and associated data are public. So is the verdict of an opening, the one branch that
//! `scripts/test/secrets.supp` allows. Results are compared after they were declared defined.
//!
//! *Not shown:* what valgrind's CPU does not have (512-bit registers, 256-bit AES, SHA instructions); RSA and curves, whose
//! checks of the key are branches by design; ML-KEM's key generation, whose seed gives a public matrix, which is sampled by
//! branches. The lanes' poisoned model stands for those of lanes. Instructions that take
//! another time for other operands are no branch: memcheck does not see them.

use std::process::ExitCode;

use wattlock_core::dev::Random;
use wattlock_core::{
    Algorithm, Data, Engine, Family, Group, Item, Key, Kind, ML_KEM_768_PUBLIC, Material, NonceLen, Request,
};
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::lanes::dev::lanes_here;
use wattlock_cpu::software::Software;

/// Numbers of valgrind.h and memcheck.h.
const RUNNING: usize = 0x1001;
const ERRORS: usize = 0x1201;
const UNDEFINED: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16 | 1;
const DEFINED: usize = UNDEFINED + 1;

/// Lengths of messages: less than a block, several, and enough for every kernel's long way.
const LENGTHS: [usize; 4] = [7, 64, 333, 1040];

/// Messages of a batch in lanes: more than one pass takes of some.
const BATCH: usize = 9;

fn main() -> ExitCode {
    if ask(RUNNING, [0; 5]) == 0 {
        eprintln!("not under valgrind: see scripts/test/secrets.sh");
        return ExitCode::FAILURE;
    }
    if control() == 0 {
        eprintln!("a branch on an undefined byte went unnoticed: this run says nothing");
        return ExitCode::FAILURE;
    }
    let (software, instruction, lanes) = (Software::new(), Instruction::new(), lanes_here());
    let mut engines: Vec<&dyn Engine> = vec![&software, &instruction];
    engines.extend(lanes.iter().map(|lanes| lanes as &dyn Engine));
    let (random, mut faults, mut rows) = (Random::new(0x5ec2e7), 0, 0);
    for engine in engines {
        println!("{}: {}", engine.description().name, engine.description().detail);
        for kind in engine.description().inline.iter().filter(|kind| watched(*kind)) {
            let found: usize = lengths(kind).into_iter().map(|len| watch(engine, kind, len, &random)).sum();
            faults += found;
            rows += 1;
            if found > 0 {
                println!("  {:28} {found} branches or addresses", kind.name());
            }
        }
    }
    println!("{rows} kinds of engines, {faults} branches or addresses that depend on a secret");
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Asks valgrind; 0 without valgrind. The rotations leave the register as it was, and the exchange does nothing:
/// valgrind knows the sequence (valgrind.h, AMD64).
fn ask(what: usize, with: [usize; 5]) -> usize {
    let words = [what, with[0], with[1], with[2], with[3], with[4]];
    let mut answer = 0usize;
    // SAFETY: on a CPU the instructions change flags only, which the compiler expects of inline assembly; valgrind reads the six
    // words, and writes the answer.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") words.as_ptr(), inout("rdx") answer, options(nostack)
        );
    }
    answer
}

fn mark(what: usize, bytes: &[u8]) {
    ask(what, [bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]);
}

/// Errors so far.
fn errors() -> usize {
    ask(ERRORS, [0; 5])
}

/// Branches on an undefined byte; the errors of that.
fn control() -> usize {
    let (before, secret) = (errors(), std::hint::black_box(vec![1u8; 1]));
    mark(UNDEFINED, &secret);
    if secret[0] == 1 {
        std::hint::black_box(&secret);
    }
    errors() - before
}

fn watched(kind: Kind) -> bool {
    use Family::{Cipher, Derive, Digest, Mac, Open, Seal};
    matches!(kind.info().family, Cipher | Derive | Digest | Mac | Open | Seal)
        || matches!(kind, Kind::MlKem768Encapsulate | Kind::MlKem768Decapsulate)
}

/// The lengths that a kind takes.
fn lengths(kind: Kind) -> Vec<usize> {
    let info = kind.info();
    let only = [info.least];
    let lengths: &[usize] = if info.family == Family::Agree { &only } else { &LENGTHS };
    lengths
        .iter()
        .copied()
        .map(|len| len - len % info.multiple)
        .filter(|len| *len > 0 && *len >= info.least)
        .collect()
}

/// One request's bytes.
struct Work {
    kind: Kind,
    key: Vec<u8>,
    nonce: Vec<u8>,
    aad: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
    tag: Vec<u8>,
}

impl Work {
    fn new(kind: Kind, len: usize, random: &Random) -> Work {
        let info = kind.info();
        let nonce = match info.nonce {
            NonceLen::Exactly(len) => len,
            _ => 16,
        };
        let key = if info.algorithm == Algorithm::None { 0 } else { info.algorithm.key_len().unwrap_or(48) };
        if info.family == Family::Agree {
            return Work::agreement(kind, random);
        }
        let derives = info.family == Family::Derive && info.group != Group::Sha3;
        let takes_input = !derives || kind.name().starts_with("tls12");
        let aad =
            if matches!(info.family, Family::Seal | Family::Open | Family::Mac) || derives { 13 } else { 0 };
        Work {
            kind,
            key: random.bytes(key),
            nonce: random.bytes(nonce),
            aad: random.bytes(if takes_input && derives { 0 } else { aad }),
            input: random.bytes(if takes_input { len } else { 0 }),
            output: vec![0; info.output.unwrap_or(len)],
            tag: vec![0; info.tag],
        }
    }

    /// An encapsulation to a fresh key, or a decapsulation of one: every other of a changed ciphertext.
    fn agreement(kind: Kind, random: &Random) -> Work {
        let make = |kind: Kind, nonce: &[u8], input: &[u8]| {
            let mut output = vec![0; kind.info().output.unwrap_or(0)];
            let request = Request::new(kind, Key::none(), Data::Apart { from: input, to: &mut output });
            Software::new().execute(&mut Request { nonce, ..request }).expect("software does every kind");
            output
        };
        let key = make(Kind::MlKem768Generate, &random.bytes(64), &[]);
        let (nonce, public) = (random.bytes(32), key[ML_KEM_768_PUBLIC].to_vec());
        let mut ciphertext = make(Kind::MlKem768Encapsulate, &nonce, &public);
        ciphertext.truncate(1088);
        ciphertext[3] ^= random.below(2) as u8;
        let encapsulates = kind == Kind::MlKem768Encapsulate;
        Work {
            kind,
            key: if encapsulates { Vec::new() } else { key },
            nonce: if encapsulates { nonce } else { Vec::new() },
            aad: Vec::new(),
            input: if encapsulates { public } else { ciphertext },
            output: vec![0; kind.info().output.unwrap_or(0)],
            tag: Vec::new(),
        }
    }

    /// What nobody may learn of key, nonce and input, marked.
    fn mark_secrets(&self, what: usize, key: &Key) {
        let family = self.kind.info().family;
        match key.material() {
            Material::MlKem(bytes) => {
                mark(what, &bytes[..ML_KEM_768_PUBLIC.start]);
                mark(what, &bytes[ML_KEM_768_PUBLIC.end + 32..]);
            }
            _ => mark(what, key.bytes()),
        }
        if self.kind.nonce_is_secret() {
            mark(what, &self.nonce);
        }
        if !matches!(family, Family::Derive | Family::Open | Family::Agree) {
            mark(what, &self.input);
        }
    }

    fn key(&self) -> Key {
        match self.kind.info().algorithm {
            Algorithm::None => Key::none_owned(),
            Algorithm::MlKem768 => Key::ml_kem_768(&self.key).expect("a key of the right length"),
            algorithm => Key::symmetric(algorithm, &self.key).expect("a key of the right length"),
        }
    }

    fn request<'a>(&'a mut self, key: &'a Key) -> Request<'a> {
        let data = Data::Apart { from: &self.input, to: &mut self.output };
        let request = Request::new(self.kind, key, data);
        Request { nonce: &self.nonce, aad: &self.aad, tag: &mut self.tag, ..request }
    }
}

/// Does a kind with undefined secrets; the branches and addresses that memcheck complained of.
fn watch(engine: &dyn Engine, kind: Kind, len: usize, random: &Random) -> usize {
    let count = if engine.width(kind) > 1 { BATCH } else { 1 };
    let mut works: Vec<Work> = (0..count).map(|_| Work::new(kind, len, random)).collect();
    // What is opened was sealed.
    for work in works.iter_mut().filter(|_| kind.info().family == Family::Open) {
        let sealing = kind.info().undoes.expect("an opening undoes a sealing");
        let key = work.key();
        work.kind = sealing;
        Software::new().execute(&mut work.request(&key)).expect("it seals");
        work.kind = kind;
        std::mem::swap(&mut work.input, &mut work.output);
    }
    let run = |works: &mut [Work], keys: &[Key]| {
        let mut items: Vec<Item<'_>> =
            works.iter_mut().zip(keys).map(|(work, key)| Item::new(work.request(key))).collect();
        engine.execute_all(&mut items);
        assert!(items.iter().all(|item| item.result.is_ok()), "{} of {len} bytes failed", kind.name());
    };
    let keys: Vec<Key> = works.iter().map(Work::key).collect();
    run(&mut works, &keys);
    let expected: Vec<_> = works.iter().map(|work| (work.output.clone(), work.tag.clone())).collect();
    // A key keeps what was made of it.
    let keys: Vec<Key> = works.iter().map(Work::key).collect();
    works.iter().zip(&keys).for_each(|(work, key)| work.mark_secrets(UNDEFINED, key));
    let before = errors();
    run(&mut works, &keys);
    let found = errors() - before;
    for ((work, key), (output, tag)) in works.iter().zip(&keys).zip(&expected) {
        work.mark_secrets(DEFINED, key);
        [&*work.input, &work.output, &work.tag].into_iter().for_each(|bytes| mark(DEFINED, bytes));
        assert!(work.output == *output && work.tag == *tag, "{} of {len} bytes: another result", kind.name());
    }
    found
}
