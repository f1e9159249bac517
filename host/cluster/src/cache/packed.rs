//! Compressed texts that resemble each other.
//!
//! The objects of one kind have most of their fields in common, and many of the values. A text is therefore compressed
//! with a few others of its kind as the dictionary: what is left of a small pod's 1,300 bytes are 100 to 300. That costs
//! a microsecond; making a tree of the text costs ten.

use std::sync::{Arc, Mutex};

use lz4_flex::block::{compress_with_dict, decompress_with_dict};

use operator_host_core::sync::lock;

/// The most samples in a dictionary. Each object is compared with all of them.
const SAMPLES: usize = 8;
/// The most bytes of one sample.
const SAMPLE: usize = 4 << 10;
/// New samples are taken when this many more texts resembled no sample than resembled one: the objects have changed.
const STALE: u32 = 1_000;

/// The texts with which others are compressed.
pub(super) struct Samples(Option<Mutex<State>>);

#[derive(Default)]
struct State {
    dictionary: Arc<[u8]>,
    samples: usize,
    strangers: u32,
}

impl Samples {
    /// Takes the first texts that do not resemble each other.
    pub(super) fn of_the_first() -> Self {
        Self(Some(Mutex::default()))
    }

    /// Keeps no samples, so that nothing of an object stays in memory after the object.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Compresses a text.
    pub(super) fn pack(&self, text: &str) -> Packed {
        let Some(state) = &self.0 else {
            return Packed::new(text, Arc::default());
        };
        let dictionary = Arc::clone(&lock(state).dictionary);
        let packed = Packed::new(text, dictionary);
        let resembles = !packed.dictionary.is_empty() && packed.bytes.len() <= text.len() / 2;
        let dictionary = lock(state).take(text, resembles);
        dictionary.map_or(packed, |dictionary| Packed::new(text, dictionary))
    }
}

impl State {
    /// Counts whether a text resembles a sample; returns the new dictionary if the text has become a sample.
    fn take(&mut self, text: &str, resembles: bool) -> Option<Arc<[u8]>> {
        if resembles {
            self.strangers = self.strangers.saturating_sub(1);
            return None;
        }
        if self.samples == SAMPLES {
            self.strangers += 1;
            if self.strangers < STALE {
                return None;
            }
            *self = Self::default();
        }
        let sample = &text.as_bytes()[..text.len().min(SAMPLE)];
        self.dictionary = [&*self.dictionary, sample].concat().into();
        self.samples += 1;
        Some(Arc::clone(&self.dictionary))
    }
}

/// A compressed text.
#[derive(Clone)]
pub(super) struct Packed {
    bytes: Box<[u8]>,
    /// Bytes of the text.
    length: usize,
    dictionary: Arc<[u8]>,
}

impl Packed {
    fn new(text: &str, dictionary: Arc<[u8]>) -> Self {
        Self {
            bytes: compress_with_dict(text.as_bytes(), &dictionary).into(),
            length: text.len(),
            dictionary,
        }
    }

    /// Returns the bytes of the text.
    pub(super) const fn len(&self) -> usize {
        self.length
    }

    /// Returns the text as bytes.
    #[allow(
        clippy::expect_used,
        reason = "`Packed::new` compressed it with this dictionary"
    )]
    pub(super) fn text(&self) -> Vec<u8> {
        decompress_with_dict(&self.bytes, self.length, &self.dictionary).expect("a compressed text")
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        if self.length != other.length {
            return false;
        }
        // The same text and dictionary give the same bytes.
        match Arc::ptr_eq(&self.dictionary, &other.dictionary) {
            true => self.bytes == other.bytes,
            false => self.text() == other.text(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: usize) -> String {
        let fields = (0..20).map(|field| format!("\"field{field}\":\"value {}\"", field * 77));
        let fields: Vec<String> = fields.collect();
        format!("{{\"name\":\"pod-{number}\",{}}}", fields.join(","))
    }

    fn dictionary(samples: &Samples) -> Arc<[u8]> {
        Arc::clone(&samples.0.as_ref().unwrap().lock().unwrap().dictionary)
    }

    /// Texts without anything in common.
    fn stranger(number: u64) -> String {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let letters = (0..300).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b' ' + (state % 90) as u8)
        });
        letters.collect()
    }

    #[test]
    fn a_text_is_the_same_after_it_was_compressed() {
        let long = "ä".repeat(100_000);
        let texts = [
            String::new(),
            "a".into(),
            pod(1),
            pod(2),
            stranger(1),
            long,
            pod(3),
        ];
        for samples in [Samples::of_the_first(), Samples::none()] {
            for text in &texts {
                let packed = samples.pack(text);
                assert_eq!(packed.text(), text.as_bytes());
                assert_eq!(packed.len(), text.len());
            }
        }
    }

    #[test]
    fn objects_of_a_kind_take_a_fraction() {
        let samples = Samples::of_the_first();
        samples.pack(&pod(1));
        let packed = samples.pack(&pod(2));
        assert!(packed.bytes.len() < pod(2).len() / 10, "{}", packed.bytes.len());
        assert_eq!(dictionary(&samples).len(), pod(1).len(), "one sample is enough");
    }

    #[test]
    fn texts_are_equal_whatever_they_were_compressed_with() {
        let samples = Samples::of_the_first();
        let early = samples.pack(&pod(1));
        samples.pack(&stranger(1));
        let late = samples.pack(&pod(1));
        assert!(!Arc::ptr_eq(&early.dictionary, &late.dictionary));
        assert!(early == late && late == samples.pack(&pod(1)));
        assert!(early != samples.pack(&pod(2)) && late != samples.pack(&pod(2)));
        assert!(early == Samples::none().pack(&pod(1)));
    }

    #[test]
    fn the_dictionary_is_bounded_and_follows_the_objects() {
        let samples = Samples::of_the_first();
        samples.pack(&"long ".repeat(100_000));
        for number in 0..u64::from(STALE) / 2 {
            samples.pack(&stranger(number));
        }
        let full = dictionary(&samples);
        assert!(full.len() <= SAMPLES * SAMPLE);
        for number in 0..usize::try_from(STALE).unwrap() {
            samples.pack(&pod(number));
        }
        assert!(samples.pack(&pod(0)).bytes.len() > pod(0).len() / 10);
        for number in 0..2 * u64::from(STALE) {
            samples.pack(&stranger(number));
        }
        assert!(!Arc::ptr_eq(&full, &dictionary(&samples)), "others are taken");
    }

    #[test]
    fn nothing_stays_of_a_secret() {
        let packed = Samples::none().pack("password");
        assert!(packed.dictionary.is_empty());
    }
}
