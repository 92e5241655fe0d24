//! The two meta pages of LMDB's file, which say how long it is and where everything begins. LMDB
//! believes them: they are looked at before it does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where the fields are that are looked at, in a page of LMDB's format 1 on a 64-bit machine.
const MAGIC_AT: usize = 16;
const VERSION_AT: usize = 20;
const PAGE_BYTES_AT: usize = 40;
const LAST_PAGE_AT: usize = 136;
const META_BYTES: usize = 152;
const MAGIC: u32 = 0xbeef_c0de;
const VERSION: u32 = 1;

/// How long LMDB's file has to be for all its pages. Free pages at the end may never have been
/// written, so that a file that is shorter may be whole all the same. `None`: the pages make no sense.
pub(super) fn file_bytes(file: &File) -> io::Result<Option<u64>> {
    let Some((page_bytes, first)) = read(file, 0)? else {
        return Ok(None);
    };
    let Some((other_page_bytes, second)) = read(file, page_bytes)? else {
        return Ok(None);
    };
    let pages = first.max(second).checked_add(1);
    Ok(pages
        .and_then(|pages| pages.checked_mul(page_bytes))
        .filter(|_| other_page_bytes == page_bytes))
}

/// The size of pages and the number of the last one, as a meta page has them.
fn read(file: &File, offset: u64) -> io::Result<Option<(u64, u64)>> {
    let mut page = [0; META_BYTES];
    match file.read_exact_at(&mut page, offset) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let int = |at: usize| page[at..].first_chunk().copied().map(u32::from_ne_bytes);
    let page_bytes = int(PAGE_BYTES_AT)
        .filter(|bytes| bytes.is_power_of_two() && (1 << 9..=1 << 16).contains(bytes));
    if int(MAGIC_AT) != Some(MAGIC) || int(VERSION_AT) != Some(VERSION) {
        return Ok(None);
    }
    let last = page[LAST_PAGE_AT..].first_chunk().copied();
    Ok(page_bytes.map(u64::from).zip(last.map(u64::from_ne_bytes)))
}
