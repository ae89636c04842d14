//! `dltrain inspect`: what arrays files hold, how they lie there, and what it takes to read samples of them.

mod guess;
mod numbers;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::{BroadcastContext, ThreadPool, ThreadPoolBuilder};

use crate::config::values::within;
use crate::error::{Error, ErrorKind, Result};
use crate::fields::{
    Amount, ArrayReader, ArrayStorage, Arrays, FileArray, View, ViewSamples, better_chunk, extents, files_of,
};
use crate::plan::{describe_bytes as bytes, group};
use crate::random::{Purpose, Stream, key};
use crate::{host, record};

/// Say what arrays HDF5 and netCDF-4 files hold, how they lie there, and what reading samples of them takes.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "A view says which axes number the samples and which are channels and space (docs/fields.md):
  temperature[n,h,w]            a sample is one of the first axis
  climate/data[h,w,c]           a file is a sample, with channels last
  full[d/128,h/128,w/128,c]     tiles of 128 x 128 x 128"
)]
pub struct Args {
    /// HDF5 or netCDF-4 files, directories of such, or patterns in quotation marks; files with the same arrays are
    /// described once.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Say what samples this view makes, and how fast they are read in random order; may be given several times
    /// [default: views that are guessed].
    #[arg(long, short, value_name = "VIEW")]
    view: Vec<View>,
    /// Take the statistics of all numbers of a file, not of some 4 million of each array.
    #[arg(long)]
    all: bool,
    /// Threads that read, 1 to 1024 [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Files with the same arrays: the first, with the bytes of all of them.
struct Alike {
    path: PathBuf,
    found: Arrays,
    /// For each file how many places the first axis of each array has; 0 where it has no axes.
    first: Vec<Vec<usize>>,
}

impl Alike {
    fn arrays(&self) -> &[FileArray] {
        &self.found.arrays
    }

    fn files(&self) -> usize {
        self.first.len()
    }

    /// The array of a view.
    fn array(&self, view: &View) -> Option<&FileArray> {
        self.arrays().iter().find(|array| array.name == view.array)
    }

    /// The places of the first axis of a view's array in the file that has the fewest.
    fn fewest(&self, view: &View) -> Option<usize> {
        let at = self.arrays().iter().position(|array| array.name == view.array)?;
        self.first.iter().map(|first| first[at]).min()
    }

    /// How many samples a view makes of all files; 0 where they have no such array.
    fn samples(&self, view: &View) -> usize {
        let Some(at) = self.arrays().iter().position(|array| array.name == view.array) else { return 0 };
        let of_file = |first: &Vec<usize>| {
            let mut shape = self.arrays()[at].shape.clone();
            shape.iter_mut().take(1).for_each(|places| *places = first[at]);
            view.samples(&shape).map_or(0, |samples| samples.len())
        };
        self.first.iter().map(of_file).sum()
    }
}

/// Kinds of files that are described; more are counted.
const MOST_KINDS: usize = 8;

/// Samples that are read of a view, and after how many seconds no more are begun.
const TRIED: (usize, f64) = (64, 2.0);

/// Bytes that are read for a time that says something.
const WORTH_TIMING: u64 = 1 << 20;

/// The most threads that can be asked for.
const MOST_THREADS: usize = 1024;

/// Prints one description for each kind of file. Where an array cannot be read the others are described all the same.
///
/// # Errors
/// `Data`: a file, or arrays, that cannot be read. `Usage`: a view that no file has.
pub fn run(args: &Args) -> Result<()> {
    let threads = args.threads.unwrap_or_else(host::cores);
    within("threads", threads, MOST_THREADS)?;
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| Error::environment(format!("--threads {threads}: {error}")))?;
    let files = args.files.iter().map(|path| files_of(path)).collect::<Result<Vec<_>>>()?;
    let kinds = kinds(&files.concat())?;
    for view in &args.view {
        let arrays: Vec<&FileArray> = kinds.iter().filter_map(|kind| kind.array(view)).collect();
        for array in &arrays {
            let samples = view.samples(&array.shape);
            samples.map_err(|what| Error::usage(format!("--view {what} ({})", array.path().display())))?;
        }
        if arrays.is_empty() {
            let names = kinds.iter().flat_map(Alike::arrays).map(|array| array.name.as_str());
            let names = names.take(20).collect::<Vec<_>>().join(", ");
            let what = format!("--view {view}: no file has an array {}; they have {names}", view.array);
            return Err(Error::usage(what));
        }
    }
    let mut unread = 0;
    for kind in kinds.iter().take(MOST_KINDS) {
        unread += describe(kind, args, &pool);
    }
    if let Some(more @ 1..) = kinds.len().checked_sub(MOST_KINDS) {
        let files: usize = kinds[MOST_KINDS..].iter().map(Alike::files).sum();
        let from = kinds[MOST_KINDS].path.display();
        record::print(&format!("and {files} more files of {more} other kinds, from {from} on"));
    }
    let what = match unread {
        0 => return Ok(()),
        1 => "an array cannot be read, as its line says".into(),
        _ => format!("{unread} arrays cannot be read, as their lines say"),
    };
    Err(Error::new(ErrorKind::Data, what))
}

/// Puts files together whose arrays differ in nothing but how long their first axis is.
fn kinds(files: &[PathBuf]) -> Result<Vec<Alike>> {
    let same = |a: &FileArray, b: &FileArray| {
        let shape = |array: &FileArray| (array.shape.len(), array.shape.get(1..).map(<[usize]>::to_vec));
        let stored = |array: &FileArray| match &array.storage {
            ArrayStorage::Contiguous(_) | ArrayStorage::Unwritten => ArrayStorage::Contiguous(0),
            other => other.clone(),
        };
        (&a.name, a.element, &a.unit, shape(a)) == (&b.name, b.element, &b.unit, shape(b))
            && (a.packing, &a.missing, &a.not_applied) == (b.packing, &b.missing, &b.not_applied)
            && stored(a) == stored(b)
    };
    let mut kinds: Vec<Alike> = Vec::new();
    for path in files {
        let found = Arrays::of(path)?;
        let first = found.arrays.iter().map(|array| array.shape.first().copied().unwrap_or(0)).collect();
        let alike = kinds.iter_mut().find(|kind| {
            let (a, b) = (kind.arrays(), &found.arrays);
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        });
        match alike {
            Some(alike) => {
                alike.found.bytes += found.bytes;
                alike.first.push(first);
            }
            None => kinds.push(Alike { path: path.clone(), found, first: vec![first] }),
        }
    }
    Ok(kinds)
}

/// Describes files with the same arrays; returns how many arrays cannot be read.
fn describe(kind: &Alike, args: &Args, pool: &ThreadPool) -> usize {
    let (more, all) = match kind.files() - 1 {
        0 => (String::new(), ""),
        more => (format!(" and {more} like it"), " in all"),
    };
    record::print(&format!("{}{more}: {}{all}", kind.path.display(), bytes(kind.found.bytes as usize)));
    let mut unread = HashSet::new();
    let mut say = |array: &str, said: Result<()>| {
        if let Err(error) = said {
            record::print(&format!("      cannot be read: {}", error.message));
            unread.insert(array.to_string());
        }
    };
    let of = if kind.files() > 1 { "in the first file: " } else { "" };
    let mut known = HashMap::new();
    for array in kind.arrays() {
        let unguessed = guess::why_not(array).filter(|_| args.view.is_empty());
        let unguessed = unguessed.map_or(String::new(), |why| format!("; no view is guessed: {why}"));
        record::print(&format!("  {}{unguessed}", line(array)));
        if !array.shape.contains(&0) && array.storage != ArrayStorage::Unwritten {
            let numbers = numbers::of(array, args.all, pool);
            let numbers = numbers.map(|numbers| {
                record::print(&format!("      {of}{numbers}"));
                known.insert(&*array.name, numbers);
            });
            say(&array.name, numbers);
        }
    }
    for (name, what) in &kind.found.left_out {
        record::print(&format!("  {name}: left out: {what}"));
    }
    let guessed = args.view.is_empty();
    let views: Vec<View> = match guessed {
        true => kind.arrays().iter().filter_map(guess::view).collect(),
        false => args.view.clone(),
    };
    if views.is_empty() {
        let what =
            "no array with samples that could be guessed: --view NAME[AXIS,…] names them (docs/fields.md)";
        record::print(what);
    }
    for view in &views {
        if let Some(array) = kind.array(view) {
            say(&array.name, try_view(view, guessed, array, kind.samples(view), pool));
        }
    }
    let data = match kind.files() {
        1 => quoted(&kind.path),
        _ => quoted(kind.path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))),
    };
    let is_sound = guessed && unread.is_empty();
    if let Some(command) = guess::command(kind, &views, &known, &data).filter(|_| is_sound) {
        record::print(&format!("  to train, as a first try: {command}"));
    }
    unread.len()
}

/// A text in quotation marks as a shell takes it.
fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=@%:,~".contains(letter);
    if text.chars().all(is_plain) { text } else { in_quotes(&text) }
}

/// "240×37×49 f32 [time, latitude, longitude] in K; chunks 1×37×49 (7.3 kB), deflate, shuffle, 1.9:1".
fn line(array: &FileArray) -> String {
    let mut text = format!("{}  {} {}", array.name, extents(&array.shape), array.element);
    if array.axes.iter().any(|axis| !axis.is_empty()) {
        let names =
            array.axes.iter().map(|axis| if axis.is_empty() { "?" } else { axis }).collect::<Vec<_>>();
        text += &format!(" [{}]", names.join(", "));
    }
    if let Some(unit) = &array.unit {
        text += &format!(" in {unit}");
    }
    text += &match &array.storage {
        ArrayStorage::Contiguous(_) => format!("; {} in one piece", bytes(array.bytes() as usize)),
        ArrayStorage::Unwritten => "; never written".into(),
        ArrayStorage::Computed(_) => "; computed".into(),
        ArrayStorage::Library(why) => format!("; read through the HDF5 library, one thread at a time: {why}"),
        ArrayStorage::Chunked(chunk, filters) => {
            let names = filters.iter().map(|filter| format!(", {}", format!("{filter:?}").to_lowercase()));
            let mut text = format!(
                "; chunks {} ({}){}",
                extents(chunk),
                bytes(array.chunk_bytes()),
                names.collect::<String>()
            );
            if array.unwritten_chunks() > 0 {
                let all = group(array.chunk_count());
                text += &format!(", {} of {all} never written", group(array.unwritten_chunks()));
            }
            if let (false, Some(stored @ 1..)) = (filters.is_empty(), array.stored()) {
                text += &format!(", {:.1}:1", array.bytes() as f64 / stored as f64);
            }
            text
        }
    };
    if let Some((scale, offset)) = array.packing {
        text += &format!("; stands for numbers × {scale} + {offset} (netCDF's packing)");
    }
    if !array.not_applied.is_empty() {
        text += &format!("; not applied: {}", array.not_applied.join(", "));
    }
    text
}

/// Says what samples a view makes of an array, of all files `all`; reads some, and says what it took.
fn try_view(view: &View, guessed: bool, array: &FileArray, all: usize, pool: &ThreadPool) -> Result<()> {
    let samples = view.samples(&array.shape).map_err(|what| Error::usage(format!("--view {what}")))?;
    let what = if guessed { "guessed view" } else { "view" };
    let plural = if all == 1 { "" } else { "s" };
    let mut text = format!("  {what} {view}: {} sample{plural} of {}", group(all), extents(&samples.shape()));
    for (axis, rest) in samples.rest().iter().enumerate().filter(|(_, rest)| **rest > 0) {
        text += &format!("; {rest} of {} places of axis {axis} are left out", array.shape[axis]);
    }
    record::print(&text);
    let numbers: usize = samples.shape().iter().product();
    let readers = readers(numbers, array, pool);
    if readers == 0 {
        record::print("      not read: a sample takes more than half of the memory that is free here");
        return Ok(());
    }
    let (amount, read, seconds) = try_samples(array, &samples, readers, pool)?;
    let per = |bytes: u64| self::bytes((bytes as f64 / read as f64).round() as usize);
    let times = amount.decoded as f64 / amount.used as f64;
    let mut text = format!(
        "      a sample has {}, reads {} of the file and decodes {} ({times:.2} times what it uses)",
        per(amount.used),
        per(amount.read),
        per(amount.decoded),
    );
    if amount.used >= WORTH_TIMING {
        let threads = match readers {
            1 => "one thread".into(),
            threads => format!("{threads} threads"),
        };
        let rate = self::bytes((amount.used as f64 / seconds.max(1e-9)) as usize);
        text += &format!("; {} in random order by {threads}: {seconds:.2} s, {rate}/s used", group(read));
    }
    record::print(&text);
    if let Some(better) = better_chunk(array, &samples, amount) {
        let chunk = better.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let layout = in_quotes(&format!("{}:CHUNK={chunk}", array.name));
        let better = extents(&better);
        record::print(&format!(
            "      chunks of {better} would fit the samples: h5repack -l {layout} OLD NEW"
        ));
    }
    Ok(())
}

/// Reads samples in random order; returns what it took, how many they were, and the seconds.
fn try_samples(
    array: &FileArray,
    samples: &ViewSamples,
    readers: usize,
    pool: &ThreadPool,
) -> Result<(Amount, usize, f64)> {
    let numbers: usize = samples.shape().iter().product();
    let count = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    let mut stream = Stream::new(key(1, Purpose::Shuffle, 0));
    let wanted = if samples.len() > 1 { TRIED.0 } else { 1 };
    let order: Vec<usize> = (0..wanted).map(|_| stream.below(count) as usize).collect();
    // The library is asked for the places of chunks before the clock starts.
    array.stored();
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let read = |thread: BroadcastContext<'_>| -> Result<Vec<Amount>> {
        let (mut reader, mut sample, mut amounts) = (ArrayReader::default(), Vec::new(), Vec::new());
        if thread.index() >= readers {
            return Ok(amounts);
        }
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !amounts.is_empty() && begun.elapsed().as_secs_f64() > TRIED.1 {
                break;
            }
            sample.resize(numbers, 0.0);
            reader.forget();
            reader.read(array, &samples.part(index, None), &mut sample)?;
            amounts.push(reader.take_amount());
        }
        Ok(amounts)
    };
    let amounts: Result<Vec<Vec<Amount>>> = pool.broadcast(read).into_iter().collect();
    let seconds = begun.elapsed().as_secs_f64();
    let amounts = amounts?.concat();
    Ok((amounts.iter().copied().sum(), amounts.len(), seconds))
}

/// How many threads may hold so many numbers of an array each, and a chunk, in half of the memory that is free; 0 where
/// it has no room for one.
fn readers(numbers: usize, array: &FileArray, pool: &ThreadPool) -> usize {
    let room = host::available_memory().unwrap_or(usize::MAX) / 2;
    let each = numbers.saturating_mul(size_of::<f32>()).saturating_add(2 * array.chunk_bytes()).max(1);
    (room / each).min(pool.current_num_threads())
}
