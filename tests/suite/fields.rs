//! Arrays of HDF5 and netCDF-4 files: every type, layout and filter is read as the HDF5 library reads it, whatever the
//! window; damaged files end in one message; `dltrain inspect` says what is there.

use std::path::{Path, PathBuf};

use dltrain::fields::{ArrayBox, ArrayReader, ArrayStorage, Arrays, FileArray, View};
use hdf5::{Hyperslab, SliceOrIndex};
use proptest::prelude::*;

use crate::support::job::{DLTRAIN, finish};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fields.hdf5")
}

/// A box of an array as the library reads it.
fn by_library(path: &Path, name: &str, ArrayBox { first, len }: &ArrayBox) -> Vec<f32> {
    let dataset = hdf5::File::open(path).unwrap().dataset(name).unwrap();
    if first.is_empty() {
        return vec![dataset.read_scalar::<f32>().unwrap()];
    }
    let slices: Vec<SliceOrIndex> =
        first.iter().zip(len).map(|(&first, &len)| (first..first + len).into()).collect();
    let read = dataset.as_reader().read_slice::<f32, _, ndarray::IxDyn>(Hyperslab::new(slices));
    read.unwrap_or_else(|error| panic!("{name}: {error}")).into_raw_vec_and_offset().0
}

/// All numbers of an array.
fn whole_of(array: &FileArray) -> dltrain::error::Result<Vec<f32>> {
    let all = ArrayBox { first: vec![0; array.shape.len()], len: array.shape.clone() };
    let mut numbers = vec![0.0; array.shape.iter().product()];
    ArrayReader::default().read_box(array, &all, &mut numbers)?;
    Ok(numbers)
}

/// All boxes of a few arrays, drawn ones of all: the numbers and their order.
#[test]
fn every_type_layout_and_filter_is_read_as_by_the_library() {
    let path = fixture();
    let arrays = Arrays::of(&path).unwrap().arrays;
    assert!(arrays.len() > 45, "{}", arrays.len());
    let mut by_itself = 0;
    let mut draw = 7u32;
    let mut below = |bound: usize| {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (draw >> 8) as usize % bound
    };
    for array in &arrays {
        by_itself += usize::from(!matches!(array.storage, ArrayStorage::Library(_)));
        let mut reader = ArrayReader::default();
        // The system's library has no LZF; the same numbers are beside it.
        let other = if array.name.starts_with("filters/lzf") { "filters/none" } else { &array.name };
        for _ in 0..12 {
            let first: Vec<usize> = array.shape.iter().map(|&extent| below(extent)).collect();
            let len: Vec<usize> =
                array.shape.iter().zip(&first).map(|(extent, first)| 1 + below(extent - first)).collect();
            let window = ArrayBox { first, len };
            let mut ours = vec![f32::INFINITY; window.len.iter().product()];
            reader.read_box(array, &window, &mut ours).unwrap();
            let mut theirs = by_library(&path, other, &window);
            if array.name == "temperature" {
                // What netCDF's readers make of it.
                let means =
                    |raw: f32| if raw == -999.0 { f32::NAN } else { (f64::from(raw) * 0.01 + 273.15) as f32 };
                theirs.iter_mut().for_each(|number| *number = means(*number));
            }
            // Of one array one chunk was written, of another none.
            let is_written = |place: Vec<usize>| match &*array.name {
                "layouts/holes" => place.iter().all(|place| (4..8).contains(place)),
                name => name != "layouts/unwritten",
            };
            for (at, number) in theirs.iter_mut().enumerate() {
                let mut rest = at;
                let mut place: Vec<usize> =
                    window.len.iter().rev().map(|len| (rest % len, rest /= len).0).collect();
                place.reverse();
                place.iter_mut().zip(&window.first).for_each(|(place, first)| *place += first);
                *number = if is_written(place) { *number } else { f32::NAN };
            }
            assert!(same(&ours, &theirs), "{} {window:?}: {ours:?}, not {theirs:?}", array.name);
        }
    }
    let library: Vec<&str> = arrays
        .iter()
        .filter(|array| matches!(array.storage, ArrayStorage::Library(_)))
        .map(|array| array.name.as_str())
        .collect();
    assert_eq!(library, ["filters/scaleoffset", "layouts/compact", "layouts/virtual"]);
    assert_eq!(by_itself + library.len(), arrays.len());
}

/// A sample's axes are those of its network, whatever their order in the file.
#[test]
fn a_sample_is_put_in_a_networks_order() {
    let path = fixture();
    let array = FileArray::open(&path, "filters/all").unwrap();
    let theirs = by_library(&path, "filters/all", &ArrayBox { first: vec![0; 2], len: vec![11, 13] });
    for (view, index, expected) in [
        ("filters/all[n,c]", 4, (0..13).map(|c| (4, c)).collect::<Vec<_>>()),
        ("filters/all[w,h]", 0, (0..13).flat_map(|h| (0..11).map(move |w| (w, h))).collect()),
        ("filters/all[h/5,c=2..3]", 1, (2..5).flat_map(|c| (5..10).map(move |h| (h, c))).collect()),
        ("filters/all[n*3+1..2,7]", 2, vec![(7, 7), (8, 7)]),
        ("filters/all[h,c]", 0, (0..13).flat_map(|c| (0..11).map(move |h| (h, c))).collect()),
    ] {
        let samples = view.parse::<View>().unwrap().samples(&array.shape).unwrap();
        let mut ours = vec![0.0; samples.shape().iter().product()];
        ArrayReader::default().read(&array, &samples.part(index, None), &mut ours).unwrap();
        let expected: Vec<f32> = expected.iter().map(|&(row, column)| theirs[row * 13 + column]).collect();
        assert_eq!(ours, expected, "{view}");
    }
}

/// What is said to be read is what the system read for this thread.
#[test]
fn bytes_are_those_that_the_system_counts() {
    let read_so_far = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let arrays = Arrays::of(&fixture()).unwrap().arrays;
    for view in ["filters/all[n,c]", "filters/none[h/4,w]", "types/float64[n,c=1..2]", "temperature[n,h,w]"] {
        let view = view.parse::<View>().unwrap();
        let array = arrays.iter().find(|array| array.name == view.array).unwrap();
        let samples = view.samples(&array.shape).unwrap();
        let mut sample = vec![0.0; samples.shape().iter().product()];
        // The library is asked where the chunks lie.
        array.stored();
        let mut reader = ArrayReader::default();
        let (first, begun) = (read_so_far(), read_so_far());
        (0..samples.len())
            .for_each(|index| reader.read(array, &samples.part(index, None), &mut sample).unwrap());
        let counted = read_so_far() - begun - (begun - first);
        let amount = reader.take_amount();
        // The system's own numbers grow by a digit or two.
        assert!(counted.abs_diff(amount.read) <= 4 && amount.read > 0, "{view}: {counted}, not {amount:?}");
    }
}

/// How one array is written and which box of it is read.
#[derive(Debug, Clone)]
struct Drawn {
    shape: Vec<usize>,
    chunk: Vec<usize>,
    filters: [bool; 5],
    window: Vec<(usize, usize)>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let axis = (1usize..12).prop_flat_map(|extent| {
        (Just(extent), 1..=extent, 0..extent).prop_flat_map(|(extent, chunk, first)| {
            (Just(extent), Just(chunk), Just(first), 1..=extent - first)
        })
    });
    (proptest::collection::vec(axis, 1..5), any::<[bool; 5]>()).prop_map(|(axes, filters)| Drawn {
        shape: axes.iter().map(|axis| axis.0).collect(),
        chunk: axes.iter().map(|axis| axis.1).collect(),
        window: axes.iter().map(|axis| (axis.2, axis.3)).collect(),
        filters,
    })
}

/// Arrays, chunks, filters and boxes that nobody thought of.
#[test]
fn any_box_of_any_array_is_that_of_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("drawn.h5");
    proptest!(ProptestConfig::with_cases(60), |(drawn in drawn())| {
        let numbers: Vec<f64> = (0..drawn.shape.iter().product::<usize>()).map(|at| (at * at % 1009) as f64).collect();
        let content = ndarray::ArrayD::from_shape_vec(drawn.shape.clone(), numbers).unwrap();
        {
            let [gzip, shuffle, sum, new, partial] = drawn.filters;
            let file = hdf5::File::with_options().with_fapl(|of| { if new { of.libver_latest(); } of }).create(&path).unwrap();
            let mut builder = file.new_dataset_builder().with_data(&content).chunk(drawn.chunk.clone());
            if shuffle { builder = builder.shuffle(); }
            if gzip && hdf5::filters::deflate_available() { builder = builder.deflate(4); }
            if sum { builder = builder.fletcher32(); }
            // Chunks at the edges that did not go through the filters.
            let edges = hdf5::dataset::ChunkOpts::DONT_FILTER_PARTIAL_CHUNKS;
            if new && partial { builder = builder.with_dcpl(|of| of.chunk_opts(edges)); }
            builder.create("a").unwrap();
        }
        let arrays = Arrays::of(&path).unwrap().arrays;
        let (first, len): (Vec<usize>, Vec<usize>) = drawn.window.iter().copied().unzip();
        let mut ours = vec![0.0; len.iter().product()];
        let window = ArrayBox { first, len };
        ArrayReader::default().read_box(&arrays[0], &window, &mut ours).unwrap();
        prop_assert_eq!(ours, by_library(&path, "a", &window));
    });
}

/// What the library's own filter decodes: both ways to code, a sample of several chunks, beside shuffled bytes.
#[test]
fn szip_is_read_through_the_library() {
    use hdf5::filters::{Filter, SZip};
    /// Its number, which the crate does not name.
    const SZIP: hdf5::filters::H5Z_filter_t = 4;
    if !Filter::get_info(SZIP).encode_enabled {
        println!("SKIPPED: this HDF5 library writes no szip");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("szip.h5");
    let content = ndarray::Array3::from_shape_fn((6, 9, 16), |(n, y, x)| (1000 * n + x * y) as f32 / 8.0);
    {
        let file = hdf5::File::create(&path).unwrap();
        let build = || file.new_dataset_builder().chunk((2, 4, 16));
        build().szip(SZip::NearestNeighbor, 16).with_data(&content).create("nn").unwrap();
        build().szip(SZip::Entropy, 8).fletcher32().with_data(&content).create("ec").unwrap();
        build().szip(SZip::Entropy, 4).with_data(&content.mapv(|v| v as i16)).create("i16").unwrap();
    }
    for (name, content) in [("nn", &content), ("ec", &content), ("i16", &content.mapv(f32::trunc))] {
        let array = FileArray::open(&path, name).unwrap();
        assert!(
            matches!(&array.storage, ArrayStorage::Library(why) if why.contains("SZip")),
            "{:?}",
            array.storage
        );
        assert_eq!(whole_of(&array).unwrap(), content.flatten().to_vec(), "{name}");
        let view = format!("{name}[n,w,h=3..4]").parse::<View>().unwrap();
        let samples = view.samples(&array.shape).unwrap();
        let mut sample = vec![0.0; samples.shape().iter().product()];
        ArrayReader::default().read(&array, &samples.part(3, None), &mut sample).unwrap();
        assert_eq!(sample, content.slice(ndarray::s![3, .., 3..7]).t().flatten().to_vec(), "{name}");
    }
}

/// One channel of several that lie last, more numbers than are put together at a time; and all, in both orders.
#[test]
fn channels_that_lie_last_are_taken_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("last.h5");
    let number = |at: usize, channel: usize| (at * 7 % 30_011 + 1000 * channel) as i16;
    for (count, shuffled) in [(3, false), (3, true), (4, false), (4, true)] {
        let content = ndarray::Array2::from_shape_fn((5003, count), |(at, channel)| number(at, channel));
        {
            let file = hdf5::File::create(&path).unwrap();
            let builder = file.new_dataset_builder().with_data(&content).chunk((4001, count));
            if shuffled { builder.shuffle() } else { builder }.create("a").unwrap();
        }
        let array = FileArray::open(&path, "a").unwrap();
        for (view, channels) in [("a[w,2]", 2..3), ("a[w,c]", 0..count), ("a[w=5..4100,c]", 0..count)] {
            let places = if view.contains('=') { 5..4105 } else { 0..5003 };
            let samples = view.parse::<View>().unwrap().samples(&array.shape).unwrap();
            let mut ours = vec![0.0; samples.shape().iter().product()];
            ArrayReader::default().read(&array, &samples.part(0, None), &mut ours).unwrap();
            let all =
                channels.flat_map(|channel| places.clone().map(move |at| f32::from(number(at, channel))));
            assert!(all.eq(ours), "{view} of {count}");
        }
    }
}

/// Between chunks that were never written lies one that was; channels go first.
#[test]
fn what_was_never_written_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse.h5");
    let written = ndarray::Array2::from_shape_fn((8, 3), |(at, channel)| (10 * at + channel) as i16);
    {
        let file = hdf5::File::create(&path).unwrap();
        let a = file.new_dataset::<i16>().shape((40, 3)).chunk((8, 3)).fill_value(-7i16).create("a").unwrap();
        a.write_slice(&written, (8..16, ..)).unwrap();
    }
    let array = FileArray::open(&path, "a").unwrap();
    let samples = "a[w=4..24,c]".parse::<View>().unwrap().samples(&array.shape).unwrap();
    let mut ours = vec![0.0; samples.shape().iter().product()];
    ArrayReader::default().read(&array, &samples.part(0, None), &mut ours).unwrap();
    let number = |at: usize, channel| match (8..16).contains(&at) {
        true => f32::from(written[[at - 8, channel]]),
        false => f32::NAN,
    };
    let all = (0..3).flat_map(|channel| (4..28).map(move |at| number(at, channel)));
    assert!(same(&ours, &all.collect::<Vec<_>>()), "{ours:?}");
}

/// Whether numbers are the same, where none is one too.
fn same(ours: &[f32], theirs: &[f32]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

/// Chunks that the library reads, what others lack of a virtual array, also behind links; and a fill value that was
/// written is a number.
#[test]
fn what_the_library_gives_a_fill_value_for_is_missing_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gaps.h5");
    let part = ndarray::Array2::from_shape_fn((2, 5), |(y, x)| (10 * y + x) as f32 - 7.0);
    {
        let file = hdf5::File::create(&path).unwrap();
        let builder = file.new_dataset::<f32>().shape((7, 5)).fill_value(-7f32);
        let edges = hdf5::dataset::ChunkOpts::DONT_FILTER_PARTIAL_CHUNKS;
        let a =
            builder.chunk((2, 3)).deflate(1).with_dcpl(|of| of.chunk_opts(edges)).create("library").unwrap();
        a.write_slice(&part, (2..4, ..)).unwrap();
        file.new_dataset_builder().with_data(&part).create("part").unwrap();
        let builder = file
            .new_dataset::<f32>()
            .shape((7, 5))
            .fill_value(-7f32)
            .with_dcpl(|list| list.virtual_map(".", "part", (2, 5), (.., ..), (7, 5), (2..4, ..)));
        builder.create("virtual").unwrap();
        let builder = file
            .new_dataset::<f32>()
            .shape((7, 5))
            .with_dcpl(|list| list.virtual_map(".", "library", (7, 5), (.., ..), (7, 5), (.., ..)));
        builder.create("of_gaps").unwrap();
        file.new_dataset::<f32>().shape((7, 5)).fill_value(-7f32).create("never").unwrap();
    }
    let expected = |name: &str, y: usize, x: usize| match name != "never" && (2..4).contains(&y) {
        true => part[[y - 2, x]],
        false => f32::NAN,
    };
    for name in ["library", "virtual", "never"] {
        let array = FileArray::open(&path, name).unwrap();
        for [top, bottom, left, right] in [[0, 7, 0, 5], [2, 4, 0, 5], [1, 3, 2, 4], [5, 7, 4, 5]] {
            let window = ArrayBox { first: vec![top, left], len: vec![bottom - top, right - left] };
            let all = (top..bottom).flat_map(|y| (left..right).map(move |x| expected(name, y, x)));
            let mut ours = vec![0.0; window.len.iter().product()];
            ArrayReader::default().read_box(&array, &window, &mut ours).unwrap();
            assert!(same(&ours, &all.collect::<Vec<_>>()), "{name} {window:?}: {ours:?}");
            let is_lacking = ours.iter().any(|number| number.is_nan());
            assert_eq!(array.is_lacking(&window).unwrap(), is_lacking, "{name} {window:?}");
        }
    }
    let error = FileArray::open(&path, "of_gaps").err().unwrap().to_string();
    assert!(error.contains("numbers of library in ., of which some were never written"), "{error}");
    let printed = alone(&["inspect", &path.display().to_string()]).0;
    assert!(printed.contains("virtual  7×5 f32") && printed.contains("; 25 missing or NaN"), "{printed}");
}

/// The library would give zeros for what a file beside lacks.
#[test]
fn a_file_of_external_storage_that_was_cut_off_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let bytes: Vec<u8> = (0..12u8).flat_map(|number| f32::from(number).to_le_bytes()).collect();
    std::fs::write(at("first.bin"), [&[9; 8], &bytes[..16]].concat()).unwrap();
    std::fs::write(at("rest.bin"), &bytes[16..]).unwrap();
    let path = directory.path().join("external.h5");
    {
        let file = hdf5::File::create(&path).unwrap();
        let builder = file
            .new_dataset::<f32>()
            .shape((3, 4))
            .with_dcpl(|list| list.external(&at("first.bin"), 8, 16).external(&at("rest.bin"), 0, 32));
        builder.create("x").unwrap();
    }
    let open = || FileArray::open(&path, "x");
    let numbers: Vec<f32> = (0..12u8).map(f32::from).collect();
    assert_eq!(whole_of(&open().unwrap()).unwrap(), numbers);
    std::fs::write(at("rest.bin"), &bytes[16..44]).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains("rest.bin up to byte 32, and it has 28: it was cut off"), "{error}");
    std::fs::remove_file(at("first.bin")).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(
        error.contains("x holds numbers that are in the file") && error.contains("first.bin: No such"),
        "{error}"
    );
}

/// Each byte of a chunk changed in turn, a file that was cut, and one that is cut while it is open.
#[test]
fn damaged_files_end_in_messages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.h5");
    let whole = std::fs::read(fixture()).unwrap();
    let at = {
        let array = FileArray::open(&fixture(), "filters/all").unwrap();
        let ArrayStorage::Chunked(chunk, filters) = &array.storage else { panic!("{:?}", array.storage) };
        assert_eq!((chunk.as_slice(), filters.len()), (&[4, 5][..], 3));
        hdf5::File::open(fixture()).unwrap().dataset("filters/all").unwrap().chunk_info(0).unwrap()
    };
    let read = |name: &str| -> dltrain::error::Result<Vec<f32>> {
        let array = FileArray::open(&path, name)?;
        whole_of(&array)
    };
    for byte in 0..at.size as usize {
        let mut bytes = whole.clone();
        bytes[at.addr as usize + byte] ^= 0x55;
        std::fs::write(&path, &bytes).unwrap();
        let error = read("filters/all").expect_err("the checksum shows it").to_string();
        assert!(error.contains("damaged.h5: filters/all: the chunk at byte"), "{error}");
    }
    std::fs::write(&path, &whole[..at.addr as usize + 3]).unwrap();
    let error = read("filters/all").unwrap_err().to_string();
    assert!(error.contains("damaged.h5"), "{error}");
    std::fs::write(&path, &whole).unwrap();
    let array = FileArray::open(&path, "types/float64").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = whole_of(&array).unwrap_err().to_string();
    assert!(error.contains("damaged.h5: types/float64: "), "{error}");
}

/// An array of another file is not looked for in this one, and links that lead back are followed once.
#[test]
fn links_lead_to_their_own_files_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let numbers = ndarray::Array1::from_iter((0..50u16).map(f32::from));
    {
        let other = hdf5::File::create(at("other.h5")).unwrap();
        other.new_dataset_builder().with_data(&numbers).create("x").unwrap();
        let file = hdf5::File::create(at("file.h5")).unwrap();
        file.new_dataset_builder().with_data(&(-&numbers)).create("own").unwrap();
        file.link_external("other.h5", "x", "theirs").unwrap();
        let [a, b] = ["a", "b"].map(|name| file.create_group(name).unwrap());
        // Of two links in each of many groups there would be as many ways as two to the power of these.
        for (group, to) in [(&a, "b"), (&b, "a")] {
            group.link_soft(&format!("/{to}"), "first").unwrap();
            group.link_soft(&format!("/{to}"), "second").unwrap();
        }
        a.link_soft("/", "root").unwrap();
    }
    let arrays = Arrays::of(&at("file.h5")).unwrap();
    let names: Vec<&str> = arrays.arrays.iter().map(|array| array.name.as_str()).collect();
    assert_eq!(names, ["own", "theirs"]);
    assert_eq!(whole_of(&arrays.arrays[0]).unwrap(), (-&numbers).to_vec());
    assert_eq!(whole_of(&arrays.arrays[1]).unwrap(), numbers.to_vec());
    let storage = &arrays.arrays[1].storage;
    assert!(matches!(storage, ArrayStorage::Library(why) if why.contains("another file")), "{storage:?}");
    assert_eq!(arrays.left_out.len(), 5, "{:?}", arrays.left_out);
    assert!(arrays.left_out.iter().all(|(_, what)| what == "a group that is listed already"));
}

/// For a file that is gone the library would give the fill value; one that is there is found beside the file.
#[test]
fn what_a_virtual_array_lacks_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("parts")).unwrap();
    let numbers = ndarray::Array1::from_iter((0..6u16).map(f32::from));
    for name in ["parts/a.h5", "parts/b.h5"] {
        let file = hdf5::File::create(at(name)).unwrap();
        file.new_dataset_builder().with_data(&numbers).create("x").unwrap();
    }
    let path = at("whole.h5");
    {
        let file = hdf5::File::create(&path).unwrap();
        file.new_dataset_builder().with_data(&(-&numbers)).create("own").unwrap();
        let put = |name: &str, sources: [(&str, &str); 2]| {
            let builder = file.new_dataset::<f32>().shape(12).fill_value(-7f32).with_dcpl(|list| {
                for (first, (source, array)) in [0, 6].into_iter().zip(sources) {
                    list.virtual_map(source, array, 6, .., 12, first..first + 6);
                }
                list
            });
            builder.create(name).unwrap();
        };
        put("whole", [("parts/a.h5", "x"), (".", "own")]);
        put("gone", [("parts/a.h5", "x"), ("parts/b.h5", "x")]);
        put("nested", [(".", "own"), (".", "gone")]);
        put("none", [(".", "own"), ("parts/a.h5", "y")]);
    }
    std::fs::remove_file(at("parts/b.h5")).unwrap();
    let arrays = Arrays::of(&path).unwrap();
    let names: Vec<&str> = arrays.arrays.iter().map(|array| array.name.as_str()).collect();
    assert_eq!(names, ["own", "whole"], "{:?}", arrays.left_out);
    let both = [numbers.to_vec(), (-&numbers).to_vec()].concat();
    assert_eq!(whole_of(&arrays.arrays[1]).unwrap(), both);
    for (name, expected) in [
        ("gone", "whole.h5: gone holds numbers of the file parts/b.h5, which is not there: HDF5 would give"),
        ("nested", "nested holds numbers of the file parts/b.h5, which is not there"),
        ("none", "none holds numbers of y in parts/a.h5, which has no such array"),
    ] {
        let error = FileArray::open(&path, name).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// What only a plug-in decodes is named before anything is read.
#[test]
fn filters_that_are_not_here_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blosc.h5");
    let file = hdf5::File::create(&path).unwrap();
    let numbers = ndarray::Array1::from_iter((0..50u16).map(f32::from));
    file.new_dataset_builder().chunk(10).deflate(1).with_data(&numbers).create("x").unwrap();
    file.close().unwrap();
    // In the header a filter's number stands eight bytes before its name.
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|name| name == b"deflate").unwrap();
    bytes[at - 8..at - 6].copy_from_slice(&32001u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = FileArray::open(&path, "x").err().unwrap().message;
    assert!(
        error.contains("x holds numbers that were written with Blosc, a plug-in of HDF5 that is not here"),
        "{error}"
    );
}

/// Unsigned numbers in signed types, what was never written, packing that is text, and what is left out of these.
#[test]
fn what_netcdf_says_of_numbers_is_applied_or_said() {
    use hdf5::types::VarLenUnicode;
    let directory = tempfile::tempdir().unwrap();
    let text = |of: &hdf5::Location, name: &str, value: &str| {
        // netCDF's strings are lists of one.
        let value: VarLenUnicode = value.parse().unwrap();
        of.new_attr::<VarLenUnicode>().shape(1).create(name).unwrap().write_raw(&[value]).unwrap();
    };
    let number = |of: &hdf5::Location, name: &str, value: i16| {
        of.new_attr::<i16>().create(name).unwrap().write_scalar(&value).unwrap();
    };
    for is_netcdf in [true, false] {
        let path = directory.path().join(format!("{is_netcdf}.nc"));
        let file = hdf5::File::create(&path).unwrap();
        if is_netcdf {
            text(&file, "_NCProperties", "version=2,netcdf=4.9.2,hdf5=1.14.3");
        }
        let build = || file.new_dataset_builder();
        let short = build().with_data(&[1i16, -1, -32768, -2]).create("short").unwrap();
        let byte = build().with_data(&[1i8, -1]).create("byte").unwrap();
        let long = build().with_data(&[7i32, -1, -2_147_483_000]).create("long").unwrap();
        let compact = hdf5::dataset::Layout::Compact;
        // A builder that lives on would keep the file open.
        let few = [5i32, -2_147_483_000];
        let slow = build().with_dcpl(|list| list.layout(compact)).with_data(&few).create("slow").unwrap();
        for of in [&short, &byte, &long, &slow] {
            text(of, "_Unsigned", "true");
        }
        number(&short, "_FillValue", -2);
        text(&short, "scale_factor", "0.5");
        number(&byte, "add_offset", 10);
        text(&byte, "scale_factor", "half");
        number(&byte, "valid_max", 100);
        let signed = build().with_data(&[1i16, -1]).create("signed").unwrap();
        text(&signed, "_Unsigned", "false");
        build().with_data(&[3i32, -2_147_483_647]).create("whole").unwrap();
        let unfilled = hdf5::plist::dataset_create::FillTime::Never;
        let few = [3i16, -32_767];
        build().with_dcpl(|list| list.fill_time(unfilled)).with_data(&few).create("unfilled").unwrap();
        let never = 9.969_209_968_386_869e36;
        build().with_data(&[1.5f32, never as f32]).create("real").unwrap();
        let known = build().with_data(&[1.5f64, never, -9.0]).create("known").unwrap();
        number(&known, "_FillValue", -9);
        drop((short, byte, long, slow, signed, known));
        file.close().unwrap();
        let unwritten = if is_netcdf { f32::NAN } else { never as f32 };
        for (name, expected) in [
            ("short", &[0.5, 32767.5, 16384.0, f32::NAN][..]),
            ("byte", &[11.0, 265.0]),
            ("long", &[7.0, 4_294_967_295.0, 2_147_484_296.0]),
            ("slow", &[5.0, 2_147_484_296.0]),
            ("signed", &[1.0, -1.0]),
            ("whole", &[3.0, if is_netcdf { f32::NAN } else { -2_147_483_648.0 }]),
            ("unfilled", &[3.0, -32_767.0]),
            ("real", &[1.5, unwritten]),
            ("known", &[1.5, never as f32, f32::NAN]),
        ] {
            let found = whole_of(&FileArray::open(&path, name).unwrap()).unwrap();
            let bits = |of: &[f32]| of.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(expected), "{name}: {found:?}, not {expected:?}");
        }
        let printed = alone(&["inspect", &path.display().to_string()]).0;
        let line = printed.lines().find(|line| line.starts_with("  byte ")).unwrap();
        assert!(line.contains("2 u8") && line.ends_with("; not applied: scale_factor, valid_max"), "{line}");
        assert_eq!(printed.matches("not applied").count(), 1, "{printed}");
    }
}

/// h5py's booleans are 0 and 1 however they lie; names of other things are none.
#[test]
fn booleans_are_0_and_1() {
    use hdf5::types::{EnumMember, EnumType, IntSize, TypeDescriptor};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bool.h5");
    let masks = ndarray::Array2::from_shape_fn((6, 5), |(n, c)| (n * c + n) % 3 == 0);
    let file = hdf5::File::create(&path).unwrap();
    let build = || file.new_dataset_builder();
    build().with_data(&masks).create("plain").unwrap();
    build().chunk((4, 5)).shuffle().deflate(3).with_data(&masks).create("chunked").unwrap();
    build().layout(hdf5::dataset::Layout::Compact).with_data(&masks).create("compact").unwrap();
    let filled =
        file.new_dataset::<bool>().shape((6, 5)).chunk((3, 5)).fill_value(true).create("filled").unwrap();
    filled.write_slice(&masks.slice(ndarray::s![3.., ..]), (3.., ..)).unwrap();
    let member = |name: &str, value| EnumMember { name: name.into(), value };
    let members = vec![member("SEA", 0), member("LAND", 1)];
    let named = TypeDescriptor::Enum(EnumType { size: IntSize::U1, signed: true, members });
    build().empty_as(&named).shape(6).create("named").unwrap();
    drop(filled);
    file.close().unwrap();
    let numbers = |from: usize| masks.iter().skip(5 * from).map(|is| f32::from(u8::from(*is)));
    for name in ["plain", "chunked", "compact"] {
        let found = whole_of(&FileArray::open(&path, name).unwrap()).unwrap();
        assert_eq!(found, numbers(0).collect::<Vec<_>>(), "{name}");
    }
    let found = whole_of(&FileArray::open(&path, "filled").unwrap()).unwrap();
    assert!(found[..15].iter().all(|number| number.is_nan()), "{found:?}");
    assert_eq!(found[15..], numbers(3).collect::<Vec<_>>());
    let error = FileArray::open(&path, "named").err().unwrap().message;
    assert!(
        error.contains("named holds names of an enumeration: write their numbers as integers"),
        "{error}"
    );
    let printed = alone(&["inspect", &path.display().to_string()]).0;
    for expected in ["  plain  6×5 i8; ", "  filled  6×5 i8; chunks 3×5 (15 B), 1 of 2 never written"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

/// What cannot be a number for its array is said and not applied; several numbers to pack by are refused.
#[test]
fn attributes_that_say_no_number_are_named() {
    use hdf5::types::VarLenUnicode;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.h5");
    let file = hdf5::File::create(&path).unwrap();
    for (name, attribute) in [("missing", "missing_value"), ("fill", "_FillValue")] {
        let array = file.new_dataset_builder().with_data(&[1f32, 1e20]).create(name).unwrap();
        let text: VarLenUnicode = "1e20".parse().unwrap();
        array.new_attr::<VarLenUnicode>().create(attribute).unwrap().write_scalar(&text).unwrap();
    }
    for (name, attribute) in [("scaled", "scale_factor"), ("moved", "add_offset")] {
        let array = file.new_dataset_builder().with_data(&[1i16, 2]).create(name).unwrap();
        array.new_attr::<f64>().shape(2).create(attribute).unwrap().write_raw(&[0.5, 2.0]).unwrap();
    }
    let listed = file.new_dataset_builder().with_data(&[1f32, 7.0, 8.0]).create("listed").unwrap();
    listed.new_attr::<f32>().shape(2).create("missing_value").unwrap().write_raw(&[7f32, 8.0]).unwrap();
    drop(listed);
    file.close().unwrap();
    let printed = alone(&["inspect", &path.display().to_string()]).0;
    for (name, attribute) in [("missing", "missing_value"), ("fill", "_FillValue")] {
        let array = FileArray::open(&path, name).unwrap();
        assert_eq!(array.not_applied, [attribute]);
        assert_eq!(whole_of(&array).unwrap(), [1.0, 1e20]);
        assert!(printed.contains(&format!("; not applied: {attribute}")), "{printed}");
    }
    for (name, attribute) in [("scaled", "scale_factor"), ("moved", "add_offset")] {
        let what = format!("numbers whose attribute {attribute} has 2 numbers: one is for all of them");
        let error = FileArray::open(&path, name).err().unwrap().message;
        assert!(error.contains(&format!("a.h5: {name} holds {what}")), "{error}");
        assert!(printed.contains(&format!("  {name}: left out: {what}")), "{printed}");
    }
    let listed = whole_of(&FileArray::open(&path, "listed").unwrap()).unwrap();
    assert!(listed[0] == 1.0 && listed[1..].iter().all(|number| number.is_nan()), "{listed:?}");
}

/// Arrays that nothing is read of say why on their line.
#[test]
fn arrays_without_a_view_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd.h5");
    let file = hdf5::File::create(&path).unwrap();
    file.new_dataset::<f32>().shape(hdf5::Extents::Null).create("empty").unwrap();
    let many = ndarray::ArrayD::<f32>::zeros(vec![2; 7]);
    file.new_dataset_builder().with_data(&many).create("many").unwrap();
    file.new_dataset::<f32>().shape((0, 4)).create("none").unwrap();
    file.new_dataset_builder().with_data(&[1f32, 2.0]).create("plain").unwrap();
    file.close().unwrap();
    let printed = alone(&["inspect", &path.display().to_string()]).0;
    for expected in [
        "  empty: left out: nothing: it has no places (h5py.Empty)",
        "; 512 B in one piece; no view is guessed: it has 7 axes, and --view says which these are",
        "; no view is guessed: it has no numbers",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    assert_eq!(printed.matches("no view is guessed").count(), 2, "{printed}");
    let error = FileArray::open(&path, "empty").err().unwrap().message;
    assert!(error.contains("empty holds nothing: it has no places"), "{error}");
    // What is there and cannot be opened is not said to be missing.
    let of = |name: &str| FileArray::open(&fixture(), name).err().unwrap().message;
    let error = of("other/nowhere");
    assert!(error.contains("its other/nowhere cannot be opened: H5Dopen"), "{error}");
    assert!(of("other/none").contains("it has no array other/none"));
}

#[test]
fn inspect_says_what_is_there() {
    let fixture = fixture().display().to_string();
    let printed = alone(&["inspect", &fixture]).0;
    for expected in [
        "  temperature  6×4×5 i16 [time, lat, lon] in K; chunks 1×4×5 (40 B), shuffle, deflate",
        "stands for numbers × 0.01 + 273.15 (netCDF's packing)",
        "; 1 missing or NaN",
        "  guessed view temperature[n,h,w]: 6 samples of 4×5",
        "  types/float16_be  3×5 f16 big-endian; 30 B in one piece",
        "  layouts/virtual  2×11×13 i32; read through the HDF5 library, one thread at a time: it is put together of",
        "  other/compound: left out: compounds of several fields",
        "  other/nowhere: left out: a link that leads nowhere",
        "  other/elsewhere: left out: a link that leads nowhere",
    ] {
        assert!(printed.contains(expected), "{expected}\n{printed}");
    }
    let labels = printed.lines().skip_while(|line| !line.starts_with("  labels")).nth(1).unwrap();
    assert!(labels.contains("0 4") && labels.contains(" %, 1 ") && labels.contains(" %, 2 "), "{labels}");
}

/// A tile of 4 × 13 in chunks of 4 × 5 lies in three of them: 240 bytes are decoded for 208.
#[test]
fn a_view_says_what_reading_takes() {
    let fixture = fixture().display().to_string();
    let printed = alone(&["inspect", &fixture, "--view", "filters/none[h/4,w]", "--threads", "1"]).0;
    assert!(
        printed
            .contains("  view filters/none[h/4,w]: 2 samples of 4×13; 3 of 11 places of axis 0 are left out"),
        "{printed}"
    );
    assert!(
        printed.contains(
            "a sample has 208 B, reads 240 B of the file and decodes 240 B (1.15 times what it uses)"
        ),
        "{printed}"
    );
    // Samples of a few bytes would make chunks of a few bytes.
    let one = alone(&["inspect", &fixture, "--view", "filters/none[n,3]", "--threads", "1"]).0;
    assert!(one.contains("times what it uses") && !one.contains("h5repack"), "{one}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.h5").display().to_string();
    {
        let file = hdf5::File::create(&path).unwrap();
        let zeros = ndarray::Array3::<f32>::zeros((4, 256, 512));
        file.new_dataset_builder().with_data(&zeros).chunk((4, 256, 512)).create("it's").unwrap();
    }
    let large = alone(&["inspect", &path, "--view", "it's[n,h/128,w]"]).0;
    assert!(large.contains("(8.00 times what it uses)"), "{large}");
    assert!(
        large.contains("chunks of 1×128×512 would fit the samples: h5repack -l 'it'\\''s:CHUNK=1x128x512' "),
        "{large}"
    );
    let between = alone(&["inspect", &path, "--view", "it's[n,h=3..128,w]"]).0;
    assert!(!between.contains("h5repack"), "{between}");
}

/// What cannot be read is said on its line, and the rest is described.
#[test]
fn one_damaged_array_does_not_hide_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.h5");
    let at = {
        let dataset = hdf5::File::open(fixture()).unwrap().dataset("filters/all").unwrap();
        dataset.chunk_info(0).unwrap().addr as usize
    };
    let mut bytes = std::fs::read(fixture()).unwrap();
    bytes[at] ^= 0x55;
    std::fs::write(&path, &bytes).unwrap();
    let (printed, error) = alone(&["inspect", &path.display().to_string()]);
    assert!(
        printed.contains("filters/all: the chunk at byte") && printed.contains("view temperature[n,h,w]"),
        "{printed}"
    );
    assert!(error.contains("an array cannot be read, as its line says"), "{error}");
}

#[test]
fn files_alike_are_described_once_and_others_for_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, shape: (usize, usize)| {
        let path = directory.path().join(name);
        let file = hdf5::File::create(&path).unwrap();
        file.new_dataset_builder().with_data(&ndarray::Array2::<f32>::zeros(shape)).create("x").unwrap();
        path.display().to_string()
    };
    let files = [write("a.h5", (4, 3)), write("b.h5", (6, 3)), write("c.h5", (4, 5)), write("d.h5", (1, 3))];
    let printed = alone(&["inspect", &files[0], &files[1], &files[2]]).0;
    // Each file has one pair less than places.
    let pairs = alone(&["inspect", "--view", "x[n+1,c]", &files[0], &files[1], &files[3]]).0;
    assert!(
        pairs.contains("view x[n+1,c]: 8 samples of 3") && pairs.contains("in the first file: all 0"),
        "{pairs}"
    );
    assert!(printed.contains("a.h5 and 1 like it") && printed.contains("c.h5: "), "{printed}");
    assert!(printed.contains("guessed view x[n,c]: 10 samples of 3"), "{printed}");
    // As --data names files.
    std::fs::write(directory.path().join("note.txt"), "not looked at").unwrap();
    let all = directory.path().display().to_string();
    for (named, like) in [(all.clone(), 2), (format!("{all}/*.h5"), 2), (format!("{all}/[ab].h*"), 1)] {
        let printed = alone(&["inspect", &named]).0;
        assert!(printed.contains(&format!("a.h5 and {like} like it")), "{named}: {printed}");
    }
    let error = alone(&["inspect", &format!("{all}/*.nc")]).1;
    assert!(error.contains("*.nc: no file has such a name"), "{error}");
}

#[test]
fn bad_input_to_inspect_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let fixture = fixture().display().to_string();
    let classic = write("old.nc", b"CDF\x01\0\0\0\0\0\0\0\0");
    let web = write("page.h5", b"<!DOCTYPE html><html></html>");
    let half = write("half.h5", &std::fs::read(&fixture).unwrap()[..600]);
    let text = write("note.txt", b"temperature");
    for (flags, expected) in [
        (vec!["inspect"], "FILE"),
        (vec!["inspect", "none.h5"], "none.h5: No such file"),
        (vec!["inspect", &fixture, "--threads", "0"], "--threads 0: must be at least 1"),
        (vec!["inspect", &fixture, "--threads", "99999"], "--threads 99999: must be at most 1024"),
        (vec!["inspect", &classic], "old.nc: a classic netCDF file, which is no HDF5; nccopy -k netCDF-4"),
        (vec!["inspect", &web], "page.h5: is a web page"),
        (vec!["inspect", &half], "half.h5: a damaged HDF5 file"),
        (vec!["inspect", &text], "note.txt: no HDF5 or netCDF-4 file"),
        (
            vec!["inspect", &fixture, "--view", "temprature[n]"],
            "no file has an array temprature; they have filters/all",
        ),
        (vec!["inspect", &fixture, "--view", "labels[n,c]"], "names 2 axes, and the array has 3"),
        (vec!["inspect", &fixture, "--view", "labels[n"], "it has no ] at its end"),
    ] {
        let (printed, error) = alone(&flags);
        assert!(error.contains(expected), "{flags:?}: {printed}{error}");
        assert_eq!(error.matches("dltrain: error").count(), 1, "{error}");
    }
}

/// Output and errors of the program without a launcher.
fn alone(flags: &[&str]) -> (String, String) {
    let mut command = std::process::Command::new(DLTRAIN);
    command.args(flags);
    let done = finish(command);
    (done.stdout, done.stderr)
}
