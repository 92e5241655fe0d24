//! Reads what a program writes, and tells when it has written.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::sync::Notify;

/// Messages are kept up to this size, from the end.
const MESSAGES_BYTES: usize = 16 * 1024;

/// Keeps the lines that are `wanted`.
pub(crate) async fn read_lines(
    from: impl AsyncRead + Unpin,
    lines: &mut Vec<String>,
    mut wanted: impl FnMut(&str) -> bool,
    touched: &Notify,
) {
    let mut from = BufReader::new(from).split(b'\n');
    while let Ok(Some(line)) = from.next_segment().await {
        touched.notify_one();
        let line = String::from_utf8_lossy(&line);
        if wanted(&line) {
            lines.push(line.into_owned());
        }
    }
}

/// Keeps the last messages. Lines of progress end with a carriage return alone, and are overwritten.
pub(crate) async fn read_messages(
    mut from: impl AsyncRead + Unpin,
    kept: &mut Vec<u8>,
    touched: &Notify,
) {
    let (mut bytes, mut is_progress) = ([0; 4_096], false);
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        touched.notify_one();
        for byte in &bytes[..count] {
            if is_progress && !b"\r\n".contains(byte) {
                let end = kept.iter().rposition(|byte| *byte == b'\n');
                kept.truncate(end.map_or(0, |at| at + 1));
            }
            is_progress = *byte == b'\r';
            if !is_progress {
                kept.push(*byte);
            }
        }
        let surplus = kept.len().saturating_sub(MESSAGES_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn messages(text: &str) -> String {
        let mut kept = Vec::new();
        read_messages(text.as_bytes(), &mut kept, &Notify::new()).await;
        String::from_utf8(kept).unwrap()
    }

    #[tokio::test]
    async fn progress_is_overwritten() {
        let text = "a\nCounting: 10%\rCounting: 100%, done.\nb\r\nWriting: 5%\rerror: c\n";
        let kept = "a\nCounting: 100%, done.\nb\nerror: c\n";
        assert_eq!(messages(text).await, kept);
    }

    #[tokio::test]
    async fn the_end_of_long_messages_is_kept() {
        let kept = messages(&("x".repeat(2 * MESSAGES_BYTES) + "end")).await;
        assert!(kept.len() == MESSAGES_BYTES && kept.ends_with("xend"));
    }

    #[tokio::test]
    async fn only_wanted_lines_are_kept() {
        let (mut lines, wanted) = (Vec::new(), |line: &str| line.starts_with('!'));
        read_lines(
            &b"a\n! b \xff\n\n!c"[..],
            &mut lines,
            wanted,
            &Notify::new(),
        )
        .await;
        assert_eq!(lines, ["! b \u{fffd}", "!c"]);
    }
}
