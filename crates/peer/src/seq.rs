//! Update sequences as clients see them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use crate::options::SeqForm;
use crate::refusal::Refusal;

/// Writes and reads the sequences of one database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seqs {
    pub(crate) form: SeqForm,
    pub(crate) uuid: [u8; 8],
}

impl Seqs {
    pub(crate) fn json(self, seq: u64) -> String {
        match self.form {
            SeqForm::Opaque => format!("\"{}\"", self.opaque(seq)),
            SeqForm::Number => seq.to_string(),
            SeqForm::Array => format!("[{seq},\"{}\"]", self.token(seq)),
        }
    }

    /// `7-…`
    fn opaque(self, seq: u64) -> String {
        format!("{seq}-{}", self.token(seq))
    }

    fn token(self, seq: u64) -> String {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&seq.to_be_bytes());
        bytes[8..].copy_from_slice(&self.uuid);
        BASE64.encode(bytes)
    }

    /// Parses `since`. A sequence of another database counts as 0.
    ///
    /// # Errors
    /// The text is not a sequence.
    pub(crate) fn parse(self, text: &str) -> Result<u64, Refusal> {
        let malformed =
            || Refusal::bad_request("Malformed sequence supplied in 'since' parameter.");
        let text = text.trim_matches('"');
        if text == "0" {
            return Ok(0);
        }
        let token = match self.form {
            SeqForm::Number => return text.parse().map_err(|_| malformed()),
            SeqForm::Opaque => text.trim_start_matches(|digit: char| digit.is_ascii_digit()),
            SeqForm::Array => text
                .rsplit(['[', ','])
                .next()
                .unwrap_or_default()
                .trim_matches(['"', ']']),
        };
        let token = match token.strip_prefix('-') {
            Some(token) => token,
            None if self.form == SeqForm::Opaque => text,
            None => token,
        };
        let bytes = BASE64.decode(token).map_err(|_| malformed())?;
        let (seq, uuid) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
        if uuid.len() != 8 {
            return Err(malformed());
        }
        Ok(if uuid == self.uuid {
            u64::from_be_bytes(*seq)
        } else {
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_comes_back_and_strangers_start_over() {
        for form in [SeqForm::Opaque, SeqForm::Number, SeqForm::Array] {
            let seqs = Seqs { form, uuid: [1; 8] };
            for seq in [0, 1, 77, u64::MAX] {
                assert_eq!(seqs.parse(&seqs.json(seq)), Ok(seq));
            }
            assert_eq!(seqs.parse("0"), Ok(0));
            for bad in ["", "x", "7-", "7-!", "-1", "[7]"] {
                assert!(seqs.parse(bad).is_err(), "{bad}");
            }
            if form != SeqForm::Number {
                assert_eq!(seqs.parse(&Seqs { form, uuid: [2; 8] }.json(7)), Ok(0));
                assert!(seqs.parse("7").is_err());
            }
        }
    }
}
