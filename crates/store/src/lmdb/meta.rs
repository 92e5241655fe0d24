//! The two meta pages of LMDB's file, which contain its length. LMDB does not verify them, so they are
//! checked before it opens the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The offsets of the fields in a page of LMDB's format 1 on a 64-bit machine.
const MAGIC_AT: usize = 16;
const VERSION_AT: usize = 20;
const PAGE_BYTES_AT: usize = 40;
const LAST_PAGE_AT: usize = 136;
const META_BYTES: usize = 152;
const MAGIC: u32 = 0xbeef_c0de;
const VERSION: u32 = 1;

/// The length of LMDB's file with all its pages. A shorter file may still be complete: free pages at
/// the end may never have been written. `None` if the meta pages are malformed.
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

/// The page size and the number of the last page.
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
