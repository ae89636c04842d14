//! What a tar file has in it: images, and the classes that `.cls` files give.
//!
//! Only headers are read, and what `.cls` files say. Links lead to members of the same file; where a name comes twice,
//! the later member counts, as it does when the file is unpacked.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;

use super::about::{HIDDEN, LeftOut, OTHER, is_hidden, is_image};

/// A `.cls` file that is longer is none.
const LONGEST_LABEL: u64 = 64;
/// Links that lead to links.
const LONGEST_CHAIN: usize = 16;

type TarResult<T> = Result<T, String>;

/// Where an image lies.
pub struct Entry {
    /// The number of its tar file.
    pub file: usize,
    /// Its first byte in there.
    pub at: u64,
    /// How many it has.
    pub bytes: u64,
    /// Its path in there.
    pub name: String,
}

impl Entry {
    /// The directories that it lies in, outermost first.
    pub fn directories(&self) -> impl DoubleEndedIterator<Item = &str> {
        parts(self.name.rsplit_once('/').map_or("", |(directories, _)| directories))
    }
}

/// The parts of a path that mean something.
fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

/// The path, written in one way.
fn plain(path: &str) -> String {
    let mut plain: Vec<&str> = Vec::new();
    for part in parts(path) {
        match part {
            ".." => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain.join("/")
}

/// What all tar files have.
#[derive(Default)]
pub struct TarMembers {
    pub images: Vec<Entry>,
    /// Each file's class numbers by the path without `.cls`.
    pub numbers: Vec<HashMap<String, i32>>,
    pub left_out: LeftOut,
    /// Files that do not end as tar files do.
    pub without_end: Vec<usize>,
}

/// A link: its own path, and that of what it leads to.
struct TarLink {
    name: String,
    to: String,
}

impl TarMembers {
    /// Adds what one file has.
    ///
    /// # Errors
    /// What is wrong with the file, in words that follow its name.
    pub fn add(&mut self, index: usize, file: &File) -> TarResult<()> {
        let first = self.images.len();
        let size = file.metadata().map_err(wrong)?.len();
        let mut start = [0; 2];
        if file.read_exact_at(&mut start, 0).is_ok() && start == [0x1f, 0x8b] {
            return Err(
                "is compressed by gzip, and tar files are read as they are; unpack it (gunzip)".into()
            );
        }
        self.numbers.push(HashMap::new());
        let mut links = Vec::new();
        let mut found = 0;
        for_each(file, |entry| {
            found += 1;
            let kind = entry.header().entry_type();
            let name = path_of(entry)?;
            let base = name.rsplit('/').next().unwrap_or(&name);
            let is_wanted = is_image(base) || base.ends_with(".cls");
            if kind.is_dir() || !(kind.is_file() || kind.is_hard_link() || kind.is_symlink()) {
                return Ok(());
            }
            if parts(&name).any(|part| part != ".." && is_hidden(part)) {
                let of_mac = base.starts_with("._") || parts(&name).any(|part| part == "__MACOSX");
                self.left_out.add(HIDDEN, if of_mac { "._*" } else { base });
            } else if kind.is_file() {
                let place = (entry.raw_file_position(), entry.size());
                let text = || {
                    let mut text = Vec::new();
                    entry.take(LONGEST_LABEL).read_to_end(&mut text).map(|_| text)
                };
                self.member([index as u64, size], place, name, text)?;
            } else if is_wanted {
                let to = entry.link_name().map_err(wrong)?.unwrap_or_default().to_string_lossy().into_owned();
                let beside = name.rsplit_once('/').map_or("", |(directory, _)| directory);
                let to =
                    if kind.is_symlink() && !to.starts_with('/') { format!("{beside}/{to}") } else { to };
                links.push(TarLink { name, to: plain(&to) });
            }
            Ok(())
        })?;
        if found == 0 {
            return Err("empty, or not a tar file".into());
        }
        if !has_end(file, size) {
            self.without_end.push(index);
        }
        if !links.is_empty() {
            self.follow([index as u64, size], file, links)?;
        }
        self.forget_replaced(first);
        Ok(())
    }

    /// Adds what lies there under this name in a file of this number and size, if it is of use. `text` reads a label.
    fn member(
        &mut self,
        [index, size]: [u64; 2],
        (at, bytes): (u64, u64),
        name: String,
        text: impl FnOnce() -> std::io::Result<Vec<u8>>,
    ) -> TarResult<()> {
        if at.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(format!("truncated: {name} would end behind the file's end"));
        }
        let base = name.rsplit('/').next().unwrap_or(&name);
        if let Some(stem) = name.strip_suffix(".cls") {
            let text = text().map_err(wrong)?;
            let text = String::from_utf8_lossy(&text);
            let class = text.trim().parse().ok().filter(|class| (0..1_000_000).contains(class));
            let class = class.ok_or_else(|| format!("{name}: {:?} is no class number", text.trim()))?;
            self.numbers[index as usize].insert(stem.to_string(), class);
        } else if is_image(base) {
            self.images.push(Entry { file: index as usize, at, bytes, name });
        } else {
            self.left_out.add_file(base);
        }
        Ok(())
    }

    /// Adds what links lead to, under their names.
    fn follow(&mut self, of: [u64; 2], file: &File, links: Vec<TarLink>) -> TarResult<()> {
        let mut places: HashMap<String, (u64, u64)> = HashMap::new();
        for_each(file, |entry| {
            if entry.header().entry_type().is_file() {
                places.insert(plain(&path_of(entry)?), (entry.raw_file_position(), entry.size()));
            }
            Ok(())
        })?;
        let leads: HashMap<String, &str> = links.iter().map(|link| (plain(&link.name), &*link.to)).collect();
        for link in &links {
            let mut to = &*link.to;
            for _ in 0..LONGEST_CHAIN {
                to = leads.get(to).filter(|_| !places.contains_key(to)).copied().unwrap_or(to);
            }
            match places.get(to) {
                Some(&place) => {
                    let text = || {
                        let mut text = vec![0; place.1.min(LONGEST_LABEL) as usize];
                        file.read_exact_at(&mut text, place.0).map(|()| text)
                    };
                    self.member(of, place, link.name.clone(), text)?;
                }
                None => self.left_out.add("links that lead out of the tar file", &link.name),
            }
        }
        Ok(())
    }

    /// Keeps the last of several images of one name, from this one on.
    fn forget_replaced(&mut self, first: usize) {
        let mut last: HashMap<&str, usize> = HashMap::new();
        let mut replaced = Vec::new();
        for (number, entry) in self.images[first..].iter().enumerate() {
            replaced.extend(last.insert(&entry.name, first + number));
        }
        if replaced.is_empty() {
            return;
        }
        for &number in &replaced {
            self.left_out.add("images that a later one of the same name replaces", &self.images[number].name);
        }
        self.remove(replaced);
    }

    /// Takes images of these numbers away.
    pub fn remove(&mut self, mut gone: Vec<usize>) {
        gone.sort_unstable();
        let mut number = 0;
        self.images.retain(|_| {
            number += 1;
            gone.binary_search(&(number - 1)).is_err()
        });
    }

    /// Whether images have their classes in `.cls` files.
    pub fn are_keyed(&self) -> bool {
        self.numbers.iter().any(|of_file| !of_file.is_empty())
    }

    /// Where images have their classes in `.cls` files, others beside belong to samples as well.
    pub fn take_left_out(&mut self) -> LeftOut {
        let mut left_out = std::mem::take(&mut self.left_out);
        if self.are_keyed() {
            left_out.forget(OTHER);
        }
        left_out
    }
}

/// The library's texts quote the file.
fn wrong(error: std::io::Error) -> String {
    format!("corrupt or truncated tar file ({})", error.to_string().escape_debug())
}

type Member<'a> = tar::Entry<'a, BufReader<&'a File>>;

/// Goes through a file's headers.
fn for_each(file: &File, mut each: impl FnMut(&mut Member) -> TarResult<()>) -> TarResult<()> {
    std::io::Seek::rewind(&mut &*file).map_err(wrong)?;
    let mut archive = tar::Archive::new(BufReader::new(file));
    for entry in archive.entries_with_seek().map_err(wrong)? {
        each(&mut entry.map_err(wrong)?)?;
    }
    Ok(())
}

/// Whether a file ends in two blocks of zeros, as tar files do. One that was cut off between two members does not.
fn has_end(file: &File, size: u64) -> bool {
    let mut blocks = [1; 1024];
    let at = size.checked_sub(blocks.len() as u64);
    at.is_some_and(|at| file.read_exact_at(&mut blocks, at).is_ok()) && blocks.iter().all(|&byte| byte == 0)
}

fn path_of(entry: &Member) -> TarResult<String> {
    Ok(entry.path().map_err(wrong)?.to_string_lossy().into_owned())
}
