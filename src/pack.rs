//! `dltrain pack`: images of any format into few large HDF5 files, made to be read in large pieces.
//!
//! Files are shared out among ranks; each is decoded by its rank's threads and written by one. Which image goes where
//! depends on the source and `--seed` only, so that the files are the same whatever ranks wrote them; a file that is
//! whole is left alone when the command is given again, and one that is not is written anew.
//! May use: every module below. Used by: `main`.

mod universes;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::comm::World;
use crate::config::{DataFormat, Input, JpegDecoder};
use crate::data::packed::{CHUNK, Header, Packed, files_of};
use crate::data::{self, ColourSums, Dataset, Jpeg, Parts, Picture, Wanted};
use crate::error::{Error, Result};
use crate::fields::{self, Universe};
use crate::files::{self, crc32};
use crate::random::{Purpose, Stream, key};
use crate::record::{self, ProgressLine};

/// Pack images into HDF5 files that are read in large pieces.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to pack: whatever --data of a training run takes.
    source: PathBuf,
    /// The file to write, NAME.h5; where it takes several, NAME-training-1-of-8.h5 and so on. Of synthetic:universes a
    /// directory, for a file each. With --verify: not given.
    output: Option<PathBuf>,
    /// Scale every image so that its shorter side has so many pixels [default: 256].
    #[arg(long, value_name = "N")]
    size: Option<usize>,
    /// Keep the JPEG and PNG files as they are, instead of pixels: an eighth of the space, but they are decoded each
    /// time.
    #[arg(long)]
    encoded: bool,
    /// How the source lies there [default: found out].
    #[arg(long, value_enum)]
    data_format: Option<DataFormat>,
    /// Bytes of one file, about, in megabytes [default: 1024].
    #[arg(long, value_name = "MB")]
    file_mb: Option<usize>,
    /// Seed of the order in which images are packed [default: 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads a rank [default: cores of the node divided by its ranks].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stop at an image that cannot be read, instead of leaving it out.
    #[arg(long)]
    strict: bool,
    /// Read packed files, SOURCE, and compare every checksum.
    #[arg(long)]
    verify: bool,
}

impl Args {
    fn size(&self) -> usize {
        self.size.unwrap_or(256)
    }

    fn file_mb(&self) -> usize {
        self.file_mb.unwrap_or(1024)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}

/// Megabytes of the largest file.
const LARGEST_FILE: usize = 1 << 20;

/// Images that are decoded at once.
const BLOCK: usize = 256;

/// Packs or verifies. Collective.
///
/// # Errors
/// `Usage` and `Data` for what cannot be packed, `Output` for what cannot be written; the same on every rank.
pub fn run(args: &Args, world: &World) -> Result<()> {
    let threads = world.threads(args.threads)?;
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool =
        world.agree(pool.map_err(|error| Error::environment(format!("--threads {threads}: {error}"))))?;
    if Universe::of(&args.source).is_some() {
        return world.agree(Err(Universe::no_set(&args.source)));
    }
    if let Some(universes) = Universe::set(&args.source) {
        return universes::pack(args, &world.agree(universes)?, world, &pool);
    }
    if args.verify { verify(args, world, &pool) } else { pack(args, world, &pool) }
}

/// One file to write.
struct PackFile {
    set: Arc<dyn Dataset>,
    path: PathBuf,
    images: Vec<u32>,
    header: Header,
}

fn pack(args: &Args, world: &World, pool: &ThreadPool) -> Result<()> {
    let (jobs, said) = world.agree(plan(args, world.rank() == 0))?;
    let place = record::RankInfo::from(world);
    said.iter().for_each(|line| record::say(place, line));
    if let (0, Some(output)) = (world.rank(), &args.output) {
        // Before another rank begins.
        let names: Vec<_> = jobs.iter().filter_map(|job| job.path.file_name()?.to_str()).collect();
        files::sweep(files::directory_of(output), |name| {
            names.iter().any(|file| name.strip_prefix(file).is_some_and(|rest| rest.starts_with('.')))
        });
    }
    let same = jobs.iter().map(|job| (job.path.display().to_string(), job.header.source.clone()));
    world.check_same(&same.collect::<Vec<_>>())?;
    let mine: Vec<&PackFile> = jobs.iter().skip(world.rank()).step_by(world.size()).collect();
    let progress = ProgressLine::start(place, mine.iter().map(|job| job.images.len() as u64).sum());
    let found = mine.iter().filter(|job| job.path.exists()).count();
    let left_out = mine.iter().map(|job| write(job, args, pool, &progress)).sum::<Result<usize>>();
    progress.end();
    let mut sums = [world.agree(left_out)? as f64, found as f64];
    world.sum_f64(&mut sums)?;
    let [left_out, found] = sums;
    let images: usize = jobs.iter().map(|job| job.images.len()).sum();
    let files = jobs.len();
    let text =
        format!("{} images in {files} file{}", images as f64 - left_out, if files == 1 { "" } else { "s" });
    let skipped =
        if left_out > 0.0 { format!(", {left_out} left out that cannot be read") } else { String::new() };
    let there = if found > 0.0 { format!(" ({found} of them there already, whole)") } else { String::new() };
    record::say(place, &format!("{text}{there}{skipped}: {}", jobs[0].path.display()));
    Ok(())
}

/// Where the images go, if that can be.
fn output(args: &Args, is_first: bool) -> Result<&PathBuf> {
    let Some(output) = &args.output else {
        return Err(Error::usage("dltrain pack SOURCE OUTPUT.h5: the output is missing"));
    };
    if output.extension().is_none_or(|ending| ending != "h5") {
        return Err(Error::usage(format!("{}: the output's name must end in .h5", output.display())));
    }
    let directory = files::directory_of(output);
    if !directory.is_dir() {
        let what =
            format!("the directory {} does not exist; make it or choose another output", directory.display());
        return Err(Error::output(output, what));
    }
    if is_first {
        files::own(output, "choose another output")?;
    }
    if !(8..=4096).contains(&args.size()) || !(1..=LARGEST_FILE).contains(&args.file_mb()) {
        let limits =
            format!("--size must lie between 8 and 4096, and --file-mb between 1 and {LARGEST_FILE}");
        return Err(Error::usage(limits));
    }
    Ok(output)
}

/// What goes into which file, of which the first rank owns all, and what the source was taken for.
fn plan(args: &Args, is_first: bool) -> Result<(Vec<PackFile>, Vec<String>)> {
    let output = output(args, is_first)?;
    let input = Input { format: args.data_format, jpeg_decoder: JpegDecoder::Rust, ..Input::default() };
    let wanted = Wanted {
        sample: [3, args.size(), args.size()],
        classes: 1_000_000,
        seed: args.seed(),
        input: &input,
    };
    let parts = data::parts(&args.source, &wanted).map_err(|error| or_arrays(error, &args.source))?;
    let said = parts.lines(&args.source, false);
    let Parts { training, test, .. } = parts;
    let mut jobs = Vec::new();
    for (part, set) in [("training", Some(training)), ("test", test)] {
        let Some(set) = set else { continue };
        let each = match args.encoded {
            true => encoded_size(&*set)?,
            // Photographs are 4:3 on the average.
            false => args.size() * args.size() * 4,
        };
        let files = (set.len() as u64 * each as u64).div_ceil((args.file_mb() as u64) << 20).max(1) as usize;
        let order = Stream::new(key(args.seed(), Purpose::Pack, jobs.len() as u32)).permutation(set.len());
        let share = order.len().div_ceil(files);
        let shares: Vec<&[u32]> = order.chunks(share).collect();
        for (index, images) in shares.iter().enumerate() {
            let kept = if args.encoded { "as they were".into() } else { format!("size {}", args.size()) };
            let header = Header {
                part: part.into(),
                file: index + 1,
                files: shares.len(),
                source: format!("{}, {kept}, seed {}", set.fingerprint(), args.seed()),
                encoded: args.encoded,
                classes: set.class_names().to_vec(),
                prepared: Some((set.colours(), set.frame())),
                ..Header::default()
            };
            jobs.push(PackFile { set: set.clone(), path: output.clone(), images: images.to_vec(), header });
        }
    }
    if jobs.len() > 1 {
        let stem = output.file_stem().and_then(|stem| stem.to_str()).unwrap_or("images").to_string();
        for job in &mut jobs {
            let Header { part, file, files, .. } = &job.header;
            job.path = output.with_file_name(format!("{stem}-{part}-{file}-of-{files}.h5"));
        }
    }
    Ok((jobs, said))
}

/// The same of a source that has files of arrays, with what to do with these.
fn or_arrays(error: Error, source: &Path) -> Error {
    // What is packed has a header of its own before HDF5's.
    let is_bare = |file: &PathBuf| {
        let mut head = [0; 8];
        let read = files::open(file).and_then(|file| file.read_exact_at(&mut head, 0));
        read.is_ok() && head == *b"\x89HDF\r\n\x1a\n"
    };
    let all = fields::files_of(source).unwrap_or_default();
    let Some(first) = all.iter().find(|file| is_bare(file)) else { return error };
    let advice = format!(
        "{} holds arrays, which need no packing: train from them with --input and --target, as dltrain inspect {} \
         proposes",
        first.display(),
        source.display()
    );
    Error { message: format!("{advice}. Of images: {}", error.message), ..error }
}

/// Bytes of an image, by some of them.
fn encoded_size(set: &dyn Dataset) -> Result<usize> {
    let some: Vec<usize> = (0..set.len()).step_by(set.len().div_ceil(32)).collect();
    let mut sizes = Vec::new();
    for &index in &some {
        match set.encoded(index) {
            Ok(Some(bytes)) => sizes.push(bytes.len()),
            Ok(None) => return Err(Error::usage("--encoded: these images are not JPEG or PNG files")),
            Err(_) => {}
        }
    }
    Ok(sizes.iter().sum::<usize>() / sizes.len().max(1) + 1)
}

/// Writes one file, or finds it whole.
fn write(job: &PackFile, args: &Args, pool: &ThreadPool, progress: &ProgressLine) -> Result<usize> {
    let cannot = |what: String| Error::output(&job.path, what);
    if job.path.exists() {
        let file = files::open(&job.path).map_err(|error| cannot(error.to_string()))?;
        let size = file.metadata().map_err(|error| cannot(error.to_string()))?.len();
        let header = Header::read(&file, size).map_err(|what| cannot(format!("is there already: {what}")))?;
        let same = |h: &Header| (h.part.clone(), h.file, h.files, h.source.clone(), h.encoded);
        if same(&header) != same(&job.header) {
            return Err(cannot(format!("is there already, from another source ({})", header.source)));
        }
        progress.advance(job.images.len() as u64);
        return Ok(job.images.len() - header.images as usize);
    }
    files::write_new(&job.path, "packed images", |new| fill(new, job, args, pool, progress))
}

/// Writes one file to a place of its own; returns how many images were left out.
fn fill(
    path: &Path,
    job: &PackFile,
    args: &Args,
    pool: &ThreadPool,
    progress: &ProgressLine,
) -> Result<usize> {
    let cannot = |what: String| Error::output(&job.path, what);
    let mut tables = Tables::default();
    let text = |error: hdf5::Error| cannot(format!("cannot be written: {error}"));
    let user_block = user_block(&job.header, job.images.len() as u64 * (args.size() as u64).pow(2) * 16);
    let file = hdf5::File::with_options()
        .with_fcpl(|plist| plist.userblock(user_block))
        .create(path)
        .map_err(text)?;
    let mut bytes = Chunks::create(&file).map_err(text)?;
    for block in job.images.chunks(BLOCK) {
        let read = |&index: &u32| one(&*job.set, index as usize, args);
        let images: Vec<Result<One>> = pool.install(|| block.par_iter().map(read).collect());
        for (image, &index) in images.into_iter().zip(block) {
            match image {
                Ok(image) => {
                    let name = job.set.name(index as usize);
                    let name = name.strip_prefix(&*args.source.to_string_lossy()).unwrap_or(&name);
                    tables.add(&image, job.set.label(index as usize), name.trim_start_matches('/'));
                    bytes.append(&image.bytes).map_err(text)?;
                }
                Err(error) if args.strict => return Err(error),
                Err(error) => log::warn!("left out: {error}"),
            }
        }
        progress.advance(block.len() as u64);
    }
    if tables.labels.is_empty() {
        return Err(Error::data(&args.source, "none of the images of a file can be read"));
    }
    bytes.end().map_err(text)?;
    let header = finish(file, bytes, &tables, job).map_err(text)?;
    put_header(path, header, user_block).map_err(cannot)?;
    Ok(job.images.len() - tables.labels.len())
}

/// A power of two with room for the names of the classes and the places of all chunks.
fn user_block(header: &Header, most_bytes: u64) -> u64 {
    let chunks = most_bytes / CHUNK as u64 + 1;
    (4096 + 2 * header.to_text().len() as u64 + 21 * chunks).next_power_of_two()
}

/// An image as it is packed.
struct One {
    bytes: Vec<u8>,
    shape: [u32; 3],
    crc: u32,
    sums: ColourSums,
}

fn one(set: &dyn Dataset, index: usize, args: &Args) -> Result<One> {
    let mut picture = Picture::default();
    let mut sums = ColourSums::default();
    if args.encoded {
        let bytes = set.encoded(index)?.ok_or_else(|| Error::usage("--encoded: not JPEG or PNG files"))?;
        data::decode(&bytes, &mut picture, Jpeg::Rust)
            .map_err(|what| Error::data(Path::new(&set.name(index)), what))?;
        let shape = [picture.height, picture.width, picture.channels].map(|side| side as u32);
        return Ok(One { crc: crc32(&[&bytes]), bytes, shape, sums });
    }
    set.read(index, &mut picture)?;
    let picture = data::shorter_side(picture, args.size())?;
    sums.add(&picture.pixels, picture.channels);
    let shape = [picture.height, picture.width, picture.channels].map(|side| side as u32);
    Ok(One { crc: crc32(&[&picture.pixels]), bytes: picture.pixels, shape, sums })
}

/// What is kept of the images besides their bytes.
#[derive(Default)]
struct Tables {
    offsets: Vec<u64>,
    shapes: Vec<u32>,
    labels: Vec<i32>,
    crcs: Vec<u32>,
    names: String,
    sums: ColourSums,
    bytes: u64,
}

impl Tables {
    fn add(&mut self, image: &One, label: i32, name: &str) {
        self.offsets.push(self.bytes);
        self.bytes += image.bytes.len() as u64;
        self.shapes.extend(image.shape);
        self.labels.push(label);
        self.crcs.push(image.crc);
        self.names += &name.replace('\n', " ");
        self.names.push('\n');
        self.sums.join(&image.sums);
    }
}

/// The data set `bytes`, written a whole chunk at a time.
struct Chunks {
    dataset: hdf5::Dataset,
    waiting: Vec<u8>,
    written: usize,
}

impl Chunks {
    fn create(file: &hdf5::File) -> hdf5::Result<Chunks> {
        let dataset = file.new_dataset::<u8>().chunk(CHUNK).shape(0..).create("bytes")?;
        Ok(Chunks { dataset, waiting: Vec::with_capacity(2 * CHUNK), written: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> hdf5::Result<()> {
        self.waiting.extend_from_slice(bytes);
        let whole = self.waiting.len() / CHUNK * CHUNK;
        self.write(whole)
    }

    fn end(&mut self) -> hdf5::Result<()> {
        self.write(self.waiting.len())
    }

    fn write(&mut self, count: usize) -> hdf5::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let to = self.written + count;
        self.dataset.resize(to)?;
        self.dataset.write_slice(&self.waiting[..count], self.written..to)?;
        self.waiting.drain(..count);
        self.written = to;
        Ok(())
    }
}

/// Writes the tables and closes the HDF5 file; returns the header, its places counted from behind the user block.
fn finish(file: hdf5::File, bytes: Chunks, tables: &Tables, job: &PackFile) -> hdf5::Result<Header> {
    let mut offsets = tables.offsets.clone();
    offsets.push(tables.bytes);
    let put = |name: &str, dataset: hdf5::Dataset| -> hdf5::Result<u64> {
        dataset.offset().ok_or_else(|| hdf5::Error::from(format!("{name} has no place")))
    };
    let names = tables.names.as_bytes();
    let places = [
        put("offsets", file.new_dataset_builder().with_data(&offsets).create("offsets")?)?,
        put("shapes", file.new_dataset_builder().with_data(&tables.shapes).create("shapes")?)?,
        put("labels", file.new_dataset_builder().with_data(&tables.labels).create("labels")?)?,
        put("crc32", file.new_dataset_builder().with_data(&tables.crcs).create("crc32")?)?,
        put("names", file.new_dataset_builder().with_data(names).create("names")?)?,
    ];
    let classes = job.header.classes.join("\n");
    file.new_dataset_builder().with_data(classes.as_bytes()).create("classes")?;
    let mut chunks = vec![0; bytes.dataset.num_chunks().unwrap_or(0)];
    for index in 0..chunks.len() {
        let info =
            bytes.dataset.chunk_info(index).ok_or_else(|| hdf5::Error::from("a chunk has no place"))?;
        chunks[info.offset[0] as usize / CHUNK] = info.addr;
    }
    drop(bytes);
    file.close()?;
    let le = |words: &mut dyn Iterator<Item = u32>| -> Vec<u8> { words.flat_map(u32::to_le_bytes).collect() };
    let raw: [Vec<u8>; 4] = [
        offsets.iter().flat_map(|word| word.to_le_bytes()).collect(),
        le(&mut tables.shapes.iter().copied()),
        le(&mut tables.labels.iter().map(|&label| label as u32)),
        le(&mut tables.crcs.iter().copied()),
    ];
    Ok(Header {
        images: tables.labels.len() as u64,
        bytes: tables.bytes,
        chunks,
        tables: places,
        names_bytes: names.len() as u64,
        tables_crc: crc32(&[&raw[0], &raw[1], &raw[2], &raw[3], names]),
        sums: tables.sums,
        ..job.header.clone()
    })
}

/// Puts the header into the user block. Versions of HDF5 differ in whether they count places from the
/// file's start or from behind the user block: the one by which the file can be read is right.
fn put_header(path: &Path, header: Header, user_block: u64) -> std::result::Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
    let shift = |places: &[u64], by: u64| places.iter().map(|place| place + by).collect::<Vec<u64>>();
    for (chunks, tables) in [(0, 0), (user_block, 0), (0, user_block), (user_block, user_block)] {
        let tables = shift(&header.tables, tables);
        let shifted = Header {
            chunks: shift(&header.chunks, chunks),
            tables: std::array::from_fn(|index| tables[index]),
            ..header.clone()
        };
        let text = shifted.to_text();
        if text.len() as u64 > user_block {
            return Err(format!("its header of {} bytes does not fit", text.len()));
        }
        file.write_all_at(text.as_bytes(), 0).map_err(io)?;
        let readable = Packed::alone(path).is_ok_and(|packed| {
            [0, packed.len() - 1].iter().all(|&index| packed.read(index, &mut Picture::default()).is_ok())
        });
        if readable {
            return Ok(());
        }
    }
    Err("cannot be read again after it was written".into())
}

/// Reads everything and compares every checksum; files are shared out among ranks.
fn verify(args: &Args, world: &World, pool: &ThreadPool) -> Result<()> {
    let place = record::RankInfo::from(world);
    let files = world.agree(files_of(&args.source))?;
    let sets = files.iter().skip(world.rank()).step_by(world.size()).map(|file| Packed::alone(file));
    let sets = world.agree(sets.collect::<Result<Vec<Packed>>>())?;
    let progress = ProgressLine::start(place, sets.iter().map(|set| set.len() as u64).sum());
    let mut outcome = Ok(());
    let mut bad = 0;
    for set in &sets {
        for first in (0..set.len()).step_by(BLOCK) {
            let block: Vec<usize> = (first..(first + BLOCK).min(set.len())).collect();
            let check = |&index: &usize| set.read(index, &mut Picture::default()).err();
            let errors: Vec<Error> = pool.install(|| block.par_iter().filter_map(check).collect());
            bad += errors.len();
            errors.iter().for_each(|error| log::warn!("damaged: {error}"));
            outcome = errors.into_iter().next().map_or(outcome, Err);
            progress.advance(block.len() as u64);
        }
    }
    progress.end();
    let outcome = outcome.map_err(|error| error.context(format!("{bad} damaged images, one of them")));
    world.agree(outcome)?;
    // What no single file shows: that all are there and belong together.
    let parts = world.agree(data::packed::open(&args.source, Jpeg::Rust))?;
    let images = parts.training.len() + parts.test.map_or(0, |test| test.len());
    record::say(place, &format!("{images} images in {} files: every checksum is right", files.len()));
    Ok(())
}
