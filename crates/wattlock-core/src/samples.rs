//! Content for tests and measurements of compression: made from a number, the same on every machine, and as
//! compressible as its like on the web. Level 1 of zlib makes of a megabyte of [`html`] about a quarter to a third, of
//! [`json`] a sixth, of [`text`] a third.

/// A small generator of random numbers (xorshift64*): enough for content, nothing for keys.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a number.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `sides`, which must not be 0.
    pub fn below(&mut self, sides: usize) -> usize {
        ((self.roll() >> 32) as usize) % sides
    }

    /// As words are used: the first few often, the last ones seldom (the square of an even number).
    fn rank(&mut self, sides: usize) -> usize {
        let x = self.below(1 << 16);
        (((x * x) >> 16) * sides) >> 16
    }
}

const SYLLABLES: &[&str] = &[
    "an", "ber", "con", "da", "er", "fi", "gra", "ho", "in", "jo", "ka", "lo", "men", "no", "or", "pra",
    "qui", "re", "sta", "ti", "un", "ver", "wa", "xi", "yo", "ze", "sh", "tion", "ing", "ly", "s", "ed",
];

/// A vocabulary: words of one to four syllables.
fn words(dice: &mut Dice, count: usize) -> Vec<String> {
    let word = |dice: &mut Dice| {
        (0..1 + dice.below(4)).map(|_| SYLLABLES[dice.below(SYLLABLES.len())]).collect::<String>()
    };
    (0..count).map(|_| word(dice)).collect()
}

fn sentence(dice: &mut Dice, words: &[String], out: &mut String) {
    for at in 0..5 + dice.below(14) {
        if at > 0 {
            out.push_str(if dice.below(11) == 0 { ", " } else { " " });
        }
        out.push_str(&words[dice.rank(words.len())]);
    }
    out.push_str(". ");
}

fn cut(text: String, len: usize) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.truncate(len);
    bytes
}

/// `len` bytes of prose.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let words = words(&mut dice, 4000);
    let mut out = String::with_capacity(len + 256);
    while out.len() < len {
        sentence(&mut dice, &words, &mut out);
        if dice.below(6) == 0 {
            out.push_str("\n\n");
        }
    }
    cut(out, len)
}

/// `len` bytes of a page: tags, classes, links and prose.
pub fn html(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed ^ 0x68);
    let words = words(&mut dice, 3000);
    let mut out = String::with_capacity(len + 1024);
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>List</title></head>\n<body>\n");
    while out.len() < len {
        let (id, class) = (dice.below(1 << 24), &words[dice.rank(200)]);
        let name = &words[dice.rank(words.len())];
        out.push_str(&format!(
            "  <div class=\"entry {class}\" id=\"n{id:x}\">\n    <h2><a href=\"/{class}/{name}-{}.html\">{name}</a></h2>\n    <p>",
            dice.below(10_000)
        ));
        for _ in 0..1 + dice.below(4) {
            sentence(&mut dice, &words, &mut out);
        }
        out.push_str(&format!(
            "</p>\n    <span class=\"date\">2024-{:02}-{:02}</span> <span class=\"count\">{}</span>\n  </div>\n",
            1 + dice.below(12),
            1 + dice.below(28),
            dice.below(100_000)
        ));
    }
    cut(out, len)
}

/// `len` bytes of an interface's answer: the same names again and again, numbers and short strings.
pub fn json(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed ^ 0x6a);
    let words = words(&mut dice, 1500);
    let mut out = String::with_capacity(len + 512);
    out.push_str("{\"items\":[");
    while out.len() < len {
        let (id, price) = (dice.below(1_000_000), dice.below(100_000));
        let (name, tag) = (&words[dice.rank(words.len())], &words[dice.rank(40)]);
        out.push_str(&format!(
            "{{\"id\":{id},\"name\":\"{name} {}\",\"price\":{}.{:02},\"currency\":\"EUR\",\"available\":{},\"tags\":[\"{tag}\",\"{}\"],\
             \"updated\":\"2024-{:02}-{:02}T{:02}:{:02}:00Z\"}},",
            words[dice.rank(words.len())],
            price / 100,
            price % 100,
            dice.below(4) != 0,
            words[dice.rank(40)],
            1 + dice.below(12),
            1 + dice.below(28),
            dice.below(24),
            dice.below(60),
        ));
    }
    cut(out, len)
}

/// `len` bytes that no compressor makes smaller.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed ^ 0x6e);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&dice.roll().to_le_bytes());
    }
    out.truncate(len);
    out
}
