//! `dltrain inspect`: what arrays files hold, how they lie there, and what it takes to read samples of them.

mod guess;
mod numbers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::{BroadcastContext, ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::fields::{Amount, ArrayReader, ArrayStorage, Arrays, FileArray, View, ViewSamples};
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
    /// HDF5 or netCDF-4 files; those with the same arrays are described once.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A view: its samples, and how fast they are read in random order. May be given again [default: guessed for each
    /// array of numbers].
    #[arg(long, short, value_name = "VIEW")]
    view: Vec<View>,
    /// Take the statistics of all numbers, not of 16 MB of each array.
    #[arg(long)]
    all: bool,
    /// Threads that read [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Files with the same arrays: the first, and how many there are.
struct Alike {
    path: PathBuf,
    arrays: Arrays,
    files: usize,
    /// Bytes of all of them.
    bytes: u64,
    /// Places of the first axis of each array, over all files.
    first: Vec<u64>,
}

/// Kinds of files that are described; more are counted.
const MOST_KINDS: usize = 8;

/// Samples that are read of a view, and after how many seconds no more are begun.
const TRIED: (usize, f64) = (64, 2.0);

/// Bytes that are read for a time that says something.
const WORTH_TIMING: u64 = 1 << 20;

/// Prints one description for each kind of file.
///
/// # Errors
/// `Data`: a file that cannot be read. `Usage`: a view that no file has.
pub fn run(args: &Args) -> Result<()> {
    let threads = args.threads.unwrap_or_else(host::cores).max(1);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| Error::environment(format!("--threads {threads}: {error}")))?;
    let kinds = kinds(&args.files)?;
    for view in &args.view {
        let known = |kind: &Alike| kind.arrays.arrays.iter().any(|array| array.name == view.array);
        if !kinds.iter().any(known) {
            let names =
                kinds.iter().flat_map(|kind| kind.arrays.arrays.iter().map(|array| array.name.as_str()));
            let names = names.take(20).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!(
                "--view {view}: no file has an array {}; they have {names}",
                view.array
            )));
        }
    }
    for kind in kinds.iter().take(MOST_KINDS) {
        describe(kind, args, &pool)?;
    }
    if let Some(more @ 1..) = kinds.len().checked_sub(MOST_KINDS) {
        let files: usize = kinds[MOST_KINDS..].iter().map(|kind| kind.files).sum();
        record::print(&format!(
            "and {files} more files of {more} other kinds, from {} on",
            kinds[MOST_KINDS].path.display()
        ));
    }
    Ok(())
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
            && stored(a) == stored(b)
    };
    let mut kinds: Vec<Alike> = Vec::new();
    for path in files {
        let arrays = Arrays::of(path)?;
        let first = arrays.arrays.iter().map(|array| array.shape.first().copied().unwrap_or(1) as u64);
        let alike = kinds.iter_mut().find(|kind| {
            let (a, b) = (&kind.arrays.arrays, &arrays.arrays);
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        });
        match alike {
            Some(alike) => {
                alike.files += 1;
                alike.bytes += arrays.bytes;
                alike.first.iter_mut().zip(first).for_each(|(all, one)| *all += one);
            }
            None => {
                let first = first.collect();
                kinds.push(Alike { path: path.clone(), files: 1, bytes: arrays.bytes, first, arrays });
            }
        }
    }
    Ok(kinds)
}

fn describe(kind: &Alike, args: &Args, pool: &ThreadPool) -> Result<()> {
    let (more, all) = match kind.files - 1 {
        0 => (String::new(), ""),
        more => (format!(" and {more} like it"), " in all"),
    };
    record::print(&format!("{}{more}: {}{all}", kind.path.display(), bytes(kind.bytes as usize)));
    for array in &kind.arrays.arrays {
        record::print(&format!("  {}", line(array)));
        if !array.shape.contains(&0) && array.storage != ArrayStorage::Unwritten {
            record::print(&format!("      {}", numbers::of(array, args.all, pool)?));
        }
    }
    for (name, what) in &kind.arrays.left_out {
        record::print(&format!("  {name}: left out: {what}"));
    }
    let guessed = args.view.is_empty();
    let views: Vec<View> = match guessed {
        true => kind.arrays.arrays.iter().filter_map(guess::view).collect(),
        false => args.view.clone(),
    };
    if views.is_empty() {
        record::print(
            "no array with samples that could be guessed: --view NAME[AXIS,…] names them (docs/fields.md)",
        );
    }
    for view in &views {
        if let Some(at) = kind.arrays.arrays.iter().position(|array| array.name == view.array) {
            try_view(view, guessed, &kind.arrays.arrays[at], kind.first[at], kind.files, pool)?;
        }
    }
    Ok(())
}

/// "240×37×49 f32 [time, latitude, longitude] in K; chunks 1×37×49 (7.3 kB), deflate, shuffle, 1.9:1".
fn line(array: &FileArray) -> String {
    let mut text = format!("{}  {} {}", array.name, shape(&array.shape), array.element);
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
        ArrayStorage::Library(why) => format!("; read through the HDF5 library, one thread at a time: {why}"),
        ArrayStorage::Chunked(chunk, filters) => {
            let size = chunk.iter().product::<usize>() * array.element.bytes();
            let names = filters.iter().map(|filter| format!(", {}", format!("{filter:?}").to_lowercase()));
            let mut text =
                format!("; chunks {} ({}){}", shape(chunk), bytes(size), names.collect::<String>());
            if let (false, Some(stored @ 1..)) = (filters.is_empty(), array.stored()) {
                text += &format!(", {:.1}:1", array.bytes() as f64 / stored as f64);
            }
            text
        }
    };
    if let Some((scale, offset)) = array.packing {
        text += &format!("; stands for numbers × {scale} + {offset} (netCDF's packing)");
    }
    text
}

fn shape(shape: &[usize]) -> String {
    match shape {
        [] => "one number".into(),
        shape => shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×"),
    }
}

/// Says what samples a view makes of a kind of files, reads some, and says what it took.
fn try_view(
    view: &View,
    guessed: bool,
    array: &FileArray,
    first: u64,
    files: usize,
    pool: &ThreadPool,
) -> Result<()> {
    let samples = view.samples(&array.shape).map_err(|what| Error::usage(format!("--view {what}")))?;
    let own = array.shape.first().map_or(1, |&own| own.max(1)) as f64;
    let all = (samples.len() as f64 * first as f64 / own).round() as usize;
    let all = if samples.counts(0) { all } else { samples.len() * files };
    let what = if guessed { "guessed view" } else { "view" };
    let plural = if all == 1 { "" } else { "s" };
    let mut text = format!("  {what} {view}: {} sample{plural} of {}", group(all), shape(&samples.shape()));
    if let Some(axis) = samples.rest().iter().position(|&rest| rest > 0) {
        text += &format!(
            "; {} of {} places of axis {axis} are left out",
            samples.rest()[axis],
            array.shape[axis]
        );
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
    if let (true, Some(advice)) = (times > 2.0, advice(array, &samples)) {
        record::print(&format!("      {advice}"));
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
            reader.read(array, samples, index, &mut sample)?;
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
    let chunk = match &array.storage {
        ArrayStorage::Chunked(chunk, _) => 2 * chunk.iter().product::<usize>() * array.element.bytes(),
        _ => 0,
    };
    let room = host::available_memory().unwrap_or(usize::MAX) / 2;
    let each = numbers.saturating_mul(size_of::<f32>()).saturating_add(chunk).max(1);
    (room / each).min(pool.current_num_threads())
}

/// What chunks would be read whole by samples like these.
fn advice(array: &FileArray, samples: &ViewSamples) -> Option<String> {
    /// Bytes of a chunk that is worth a read and small enough to be kept.
    const LARGEST: usize = 4 << 20;
    let ArrayStorage::Chunked(chunk, _) = &array.storage else { return None };
    let window = samples.window(0).len;
    let mut better = window.clone();
    while better.iter().product::<usize>() * array.element.bytes() > LARGEST {
        let axis = better.iter().position(|&places| places > 1)?;
        better[axis] = better[axis].div_ceil(2);
    }
    let count = |chunk: &[usize]| {
        window.iter().zip(chunk).map(|(len, chunk)| len.div_ceil(*chunk)).product::<usize>()
    };
    Some(format!(
        "chunks of {} would be read whole, {} a sample in place of {} of {}: h5repack -l {}:CHUNK={} OLD NEW",
        shape(&better),
        count(&better),
        count(chunk),
        shape(chunk),
        array.name,
        better.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    ))
}
