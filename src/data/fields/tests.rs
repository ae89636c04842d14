use super::field::Rescaling;
use super::*;
use crate::config::{FieldOptions, Missing};
use crate::data::shard::Sharding;
use crate::data::{Batch, Reading, Samples, TrainingLoader};
use crate::fields::Amount;
use crate::graph::{CodeTables, DType};

/// A file with `t` (10 samples, 4×6), `s` (10, 3 channels), `mask` (4×6) and `labels` (10, 4×6).
pub fn file(directory: &tempfile::TempDir, name: &str) -> PathBuf {
    let path = directory.path().join(name);
    let file = hdf5::File::create(&path).unwrap();
    let add = |name: &str, shape: &[usize], of: &dyn Fn(usize) -> f32| {
        let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
        let values = ndarray::ArrayView::from_shape(ndarray::IxDyn(shape), &values[..]).unwrap();
        file.new_dataset_builder().with_data(values).create(name).unwrap();
    };
    add("t", &[10, 4, 6], &|place| place as f32);
    add("s", &[10, 3], &|place| 1000.0 + place as f32);
    add("mask", &[4, 6], &|place| -(place as f32));
    add("labels", &[10, 4, 6], &|place| (place % 3) as f32);
    path
}

pub fn options(inputs: &[&str], targets: &[&str]) -> FieldOptions {
    let list = |of: &[&str]| of.iter().map(ToString::to_string).collect();
    FieldOptions { inputs: list(inputs), targets: list(targets), ..FieldOptions::default() }
}

/// Inputs of a network by their names, each with how many numbers it has.
fn of_network(inputs: &[(&str, usize)]) -> Vec<NetworkInput> {
    inputs.iter().map(|&(name, numbers)| NetworkInput { name: name.into(), axes: vec![numbers] }).collect()
}

pub fn read(set: &FieldSet, index: usize) -> [Vec<f32>; 2] {
    let mut sample = [vec![0.0; set.image().iter().product()], vec![0.0; set.target_len()]];
    let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
    set.read_sample(index, &mut parts, [None; 2], &mut Vec::new()).unwrap();
    sample
}

#[test]
fn samples_of_fields_belong_together_by_their_numbers_and_arrays_without_are_in_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let fields = options(&["t[n-1,h,w]", "t[n,h,w]", "mask[h,w]"], &["t[n+2,h,w]"]);
    let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
    assert_eq!((set.len(), set.image(), set.target()), (7, [3, 4, 6].into(), Some(&[4, 6][..])));
    // The first number that all have is 1.
    let [input, target] = read(&set, 0);
    let places = |from: usize| (0..24).map(move |place| (24 * from + place) as f32);
    let mask = (0..24).map(|place| -(place as f32));
    assert_eq!(input, places(0).chain(places(1)).chain(mask).collect::<Vec<_>>());
    assert_eq!(target, places(3).collect::<Vec<_>>());
    assert_eq!(set.name(6), "a.h5 n 7");
    let tiles = FieldSet::open(None, &path, &options(&["t[n,h/2,w/3]"], &["s"]), &[]).unwrap();
    assert_eq!((tiles.len(), tiles.image(), tiles.target()), (40, [1, 2, 3].into(), Some(&[3][..])));
    let [input, target] = read(&tiles, 5);
    assert_eq!(input, [27.0, 28.0, 29.0, 33.0, 34.0, 35.0]);
    assert_eq!(target, [1003.0, 1004.0, 1005.0]);
}

/// The Well has fields that do not change in time beside those that do.
#[test]
fn an_array_without_one_of_the_axes_of_samples_is_the_same_along_it_and_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let fields = options(&["labels[n,t,w]", "mask[t,w]"], &["labels[n,t+1,w]"]);
    let error =
        FieldSet::open(None, &path, &options(&["s[n,c]"], &["mask[t,w]"]), &[]).err().unwrap().message;
    assert!(error.contains("every pair would be a sample"), "{error}");
    let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
    assert_eq!((set.len(), set.image()), (30, [2, 1, 6].into()));
    // n 2, t 1.
    let [input, target] = read(&set, 7);
    let (labels, row) = ((0..6).map(|w| ((24 * 2 + 6 + w) % 3) as f32), (0..6).map(|w| -((6 + w) as f32)));
    assert_eq!(input, labels.chain(row).collect::<Vec<_>>());
    assert_eq!(target, (0..6).map(|w| ((24 * 2 + 12 + w) % 3) as f32).collect::<Vec<_>>());
    let lines = set.lines(&path, "train", None);
    assert!(lines.contains(&"the same for all samples: mask[t,w] along n".to_string()), "{lines:?}");
}

/// Two of three files have more of one array than of the other, and tiles leave rows of one of them.
#[test]
fn what_no_sample_has_is_said_of_all_files() {
    let directory = tempfile::tempdir().unwrap();
    for (number, [x, y, rows]) in [[6, 6, 8], [6, 4, 9], [5, 6, 8]].into_iter().enumerate() {
        let file = hdf5::File::create(directory.path().join(format!("{number}.h5"))).unwrap();
        let zeros = ndarray::Array3::<f32>::zeros((x, rows, 5));
        file.new_dataset_builder().with_data(&zeros).create("x").unwrap();
        let goals = ndarray::Array2::<f32>::zeros((y, 3));
        let builder = file.new_dataset_builder();
        // Arrays in their own header are read through the library.
        let builder =
            if number == 1 { builder.layout(hdf5::plist::dataset_create::Layout::Compact) } else { builder };
        builder.with_data(&goals).create("y").unwrap();
    }
    let said = |path: &Path, input: &str| {
        FieldSet::open(None, path, &options(&[input], &["y[n,c]"]), &[]).unwrap().lines(path, "train", None)
    };
    for (file, input, expected) in [
        (
            "",
            "x[n,h/4,w/2]",
            "in no sample: x[n,h/4,w/2]: 1 of 9 places of axis 1 of 1 of the 3 files, 1 of 5 places of axis 2 of each \
             file, 2 of the 6 along n of 1 of the 3 files; y[n,c]: 1 of the 6 along n of 1 of the 3 files",
        ),
        ("1.h5", "x[n,h,w=0..5]", "in no sample: x[n,h,w=0..5]: 2 of the 6 along n"),
        (
            "1.h5",
            "x[n,h/4,w]",
            "y[n,c] is read through the HDF5 library, one thread at a time: its numbers are in its header (compact)",
        ),
    ] {
        let lines = said(&directory.path().join(file), input);
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
    let lines = said(&directory.path().join("?.h5"), "x[n,h/4,w]");
    let expected = "y[n,c] of 1 of the 3 files is read through the HDF5 library";
    assert!(lines.iter().any(|line| line.starts_with(expected)), "{lines:?}");
}

/// Whatever axes an array of weights has, and in which order: it is the same along the others, also of some rows.
#[test]
fn weights_are_behind_targets_and_the_same_along_axes_that_they_lack() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.h5");
    let file = hdf5::File::create(&path).unwrap();
    let extents = [('n', 3), ('c', 2), ('h', 4), ('w', 5)];
    let number =
        |places: [usize; 4]| (1000 * places[0] + 100 * places[1] + 10 * places[2] + places[3]) as f32;
    let of_axes = |subset: usize| (0..4).filter(move |axis| subset >> axis & 1 == 1);
    for subset in 0..16usize {
        let mut order: Vec<usize> = of_axes(subset).collect();
        if subset.is_multiple_of(3) {
            order.reverse();
        }
        let shape: Vec<usize> = order.iter().map(|&axis| extents[axis].1).chain([1]).collect();
        let values = ndarray::ArrayD::from_shape_fn(shape, |at| {
            let mut places = [0; 4];
            order.iter().enumerate().for_each(|(place, &axis)| places[axis] = at[place]);
            number(places)
        });
        file.new_dataset_builder().with_data(&values).create(&*format!("of{subset}")).unwrap();
        if subset == 15 {
            file.new_dataset_builder().with_data(&(-values)).create("negative").unwrap();
        }
    }
    file.close().unwrap();
    let view = |name: &str, subset: usize| {
        let mut axes: Vec<String> = of_axes(subset).map(|axis| extents[axis].0.to_string()).collect();
        if subset.is_multiple_of(3) {
            axes.reverse();
        }
        axes.push("0".into());
        format!("{name}[{}]", axes.join(","))
    };
    let open = |weight: String| {
        let target = view("of15", 15);
        let fields = FieldOptions { weights: vec![weight], ..options(&[&target], &[&target]) };
        FieldSet::open(None, &path, &fields, &[])
    };
    for (subset, rows) in (0..16).flat_map(|subset| [(subset, 0..4), (subset, 1..3)]) {
        let set = open(view(&format!("of{subset}"), subset)).unwrap();
        let height = rows.len();
        let channels = if subset & 2 == 0 { 1 } else { 2 };
        assert_eq!(set.target_len(), (2 + channels) * 20);
        let mut sample = [vec![0.0; 40], vec![f32::NAN; (2 + channels) * height * 5]];
        let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
        let cut = Some(&rows).filter(|rows| rows.len() < 4);
        set.read_sample(2, &mut parts, [None, cut], &mut Vec::new()).unwrap();
        let points = |channels| {
            let rows = rows.clone();
            (0..channels).flat_map(move |c| rows.clone().flat_map(move |h| (0..5).map(move |w| [2, c, h, w])))
        };
        let own = |places: [usize; 4]| {
            let mut own = [0; 4];
            of_axes(subset).for_each(|axis| own[axis] = places[axis]);
            number(own)
        };
        let expected: Vec<f32> = points(2).map(number).chain(points(channels).map(own)).collect();
        assert_eq!(sample[1], expected, "{subset} {rows:?}");
    }
    let set = open(view("negative", 15)).unwrap();
    let mut sample = [vec![0.0; 40], vec![0.0; 80]];
    let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
    let error = set.read_sample(1, &mut parts, [None; 2], &mut Vec::new()).err().unwrap().message;
    assert!(error.contains("sample w.h5 n 1: -1000 is no weight; weights are 0 or more"), "{error}");
    for (weight, expected) in [
        (
            view("of14", 14) + ":standard",
            "--weight of14[c,h,w,0]:standard: losses are multiplied by it as it is",
        ),
        ("of8[h,0]".into(), "it has an axis h of 5 places, and a target has c of 2, h of 4, w of 5"),
    ] {
        let error = open(weight).err().unwrap().message;
        assert!(error.contains(expected), "{error}");
    }
}

/// Images cut by rows: a rank decodes only the chunks that hold its own.
#[test]
fn rows_of_a_sample_are_read_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.h5");
    let file = hdf5::File::create(&path).unwrap();
    let values =
        ndarray::Array4::from_shape_fn((2, 8, 6, 3), |(n, y, x, c)| (1000 * n + 100 * y + 10 * x + c) as f32);
    file.new_dataset_builder().chunk((1, 2, 6, 3)).deflate(1).with_data(&values).create("x").unwrap();
    file.close().unwrap();
    let fields = options(&["x[n,h,w,c]", "x[n,h,w,0]"], &["x[n,h,w,1]"]);
    let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
    let [whole, goal] = read(&set, 1);
    let (mut part, mut wanted, mut readers) = (vec![0.0; 4 * 3 * 6], vec![0.0; 2 * 6], Vec::new());
    let mut parts = [&mut part[..], &mut wanted[..]].map(CodesMut::Numbers);
    set.read_sample(1, &mut parts, [Some(&(2..5)), Some(&(4..6))], &mut readers).unwrap();
    let rows = (0..4).flat_map(|c| whole[48 * c + 12..48 * c + 30].to_vec());
    assert_eq!(part, rows.collect::<Vec<_>>());
    assert_eq!(wanted, goal[24..36]);
    let decoded: Vec<u64> = readers.iter_mut().map(|reader| reader.take_amount().decoded).collect();
    assert_eq!(decoded, [2 * 144, 2 * 144, 144]);
}

#[test]
fn inputs_that_a_network_has_by_names_are_in_its_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let fields = options(&["t[n,h,w]", "s"], &["s"]);
    let set = FieldSet::open(None, &path, &fields, &of_network(&[("s", 3), ("t", 24)])).unwrap();
    let [input, target] = read(&set, 1);
    let t = (24..48).map(|place| place as f32);
    assert_eq!(
        (set.image(), input),
        ([27, 1, 1].into(), [1003.0, 1004.0, 1005.0].into_iter().chain(t).collect())
    );
    assert_eq!(target, [1003.0, 1004.0, 1005.0]);
    // Other names: in the order of the flags.
    let set = FieldSet::open(None, &path, &fields, &of_network(&[("a", 24), ("b", 3)])).unwrap();
    assert_eq!(read(&set, 0)[0][..3], [0.0, 1.0, 2.0]);
    let error =
        FieldSet::open(None, &path, &fields, &of_network(&[("a", 3), ("b", 24)])).err().unwrap().message;
    assert!(error.contains("24 numbers a sample, and the network's input a has 3"), "{error}");
    let error = FieldSet::open(None, &path, &fields, &of_network(&[("a", 3), ("b", 24), ("c", 1)]))
        .err()
        .unwrap()
        .message;
    assert!(error.contains("2 arrays for a network with 3 inputs: a, b, c"), "{error}");
    // One by its name, where its flag has it.
    FieldSet::open(None, &path, &fields, &of_network(&[("t", 24), ("b", 3)])).unwrap();
    let error =
        FieldSet::open(None, &path, &fields, &of_network(&[("s", 24), ("b", 3)])).err().unwrap().message;
    assert!(error.contains("inputs are s, b, of which only some are names of arrays"), "{error}");
    // Two arrays are called as the first input.
    let twice = options(&["t[n,h,w]", "t[n+0,h,w]"], &["s"]);
    let error =
        FieldSet::open(None, &path, &twice, &of_network(&[("t", 24), ("b", 24)])).err().unwrap().message;
    assert!(error.contains("inputs are t, b, of which only some are names of arrays"), "{error}");
    let set = FieldSet::open(None, &path, &fields, &of_network(&[("s", 3), ("t", 24)])).unwrap();
    let lines = set.lines(&path, "train", None);
    assert!(lines.contains(&"the network's inputs: s is s, t is t[n,h,w]".to_string()), "{lines:?}");
}

#[test]
fn a_directory_or_a_pattern_is_its_files_in_order_and_one_that_differs_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["b.h5", "a.h5"] {
        file(&directory, name);
    }
    let fields = options(&["t"], &["s"]);
    for path in [directory.path().to_path_buf(), directory.path().join("*.h5")] {
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        assert_eq!((set.len(), set.name(0), set.name(19)), (20, "a.h5 n 0".into(), "b.h5 n 9".into()));
    }
    let other = hdf5::File::create(directory.path().join("c.nc")).unwrap();
    other.new_dataset_builder().with_data(&ndarray::Array3::<f32>::zeros((10, 4, 5))).create("t").unwrap();
    other.new_dataset_builder().with_data(&ndarray::Array2::<f32>::zeros((10, 3))).create("s").unwrap();
    drop(other);
    let error = FieldSet::open(None, directory.path(), &fields, &[]).err().unwrap().message;
    assert!(error.contains("c.nc") && error.contains("samples of [4, 5], and not [4, 6]"), "{error}");
}

#[test]
fn numbers_are_rescaled_by_what_all_samples_have_and_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let set = FieldSet::open(None, &path, &options(&["s:standard"], &["s:log1p", "s:minmax"]), &[]).unwrap();
    assert!(set.is_to_be_measured());
    let width = set.moment_count();
    let moments =
        (0..10).fold(Vec::new(), |all, index| FieldSet::together(all, &set.moments(index).unwrap(), width));
    let (scales, _) = set.rescaling(&moments).unwrap();
    let set = set.scaled(&scales).unwrap();
    let all: Vec<_> = (0..10).map(|index| read(&set, index)).collect();
    for channel in 0..3 {
        let values: Vec<f32> = all.iter().map(|[input, _]| input[channel]).collect();
        let mean = values.iter().sum::<f32>() / 10.0;
        let deviation = (values.iter().map(|value| value * value).sum::<f32>() / 10.0).sqrt();
        assert!(mean.abs() < 1e-3 && (deviation - 1.0).abs() < 1e-3, "{mean} {deviation}");
        let minmax = [0, 9].map(|index| all[index][1][3 + channel]);
        assert!(minmax[0].abs() < 1e-3 && (minmax[1] - 1.0).abs() < 1e-3, "{minmax:?}");
    }
    let mut back = all[4][1].clone();
    set.unscale(&mut back);
    let first = [1012.0, 1013.0, 1014.0];
    assert!(back.iter().zip(first.iter().cycle()).all(|(a, b)| (a - b).abs() < 0.01), "{back:?}");
}

#[test]
fn what_a_target_must_not_have_is_named_or_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let of_classes = |ignored, classes| {
        let fields = FieldOptions {
            loss: Some("cross-entropy".parse().unwrap()),
            ignore_label: ignored,
            ..options(&["t[n,h,w]"], &["labels[n,h,w]"])
        };
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap().telling_apart(classes);
        let mut sample = [vec![0.0; 24], vec![0.0; 24]];
        let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
        set.read_sample(0, &mut parts, [None; 2], &mut Vec::new()).map(|_| sample[1].clone())
    };
    assert_eq!(of_classes(None, 3).unwrap()[..4], [0.0, 1.0, 2.0, 0.0]);
    let error = of_classes(None, 2).unwrap_err().message;
    assert!(error.contains("2 is none of the 2 classes") && error.contains("a.h5"), "{error}");
    let left = of_classes(Some(2), 2).unwrap();
    assert!(left[2].is_nan() && left[..2] == [0.0, 1.0], "{left:?}");
}

#[test]
fn a_file_says_by_what_numbers_are_rescaled() {
    let directory = tempfile::tempdir().unwrap();
    let [path, said] = [file(&directory, "a.h5"), directory.path().join("said.h5")];
    let stats = hdf5::File::create(&said).unwrap();
    for (name, numbers) in
        [("min_of_t", [0.0]), ("max_of_t", [200.0]), ("mean", [100.0]), ("std_of_t", [50.0])]
    {
        stats.new_dataset_builder().with_data(&numbers).create(name).unwrap();
    }
    stats.close().unwrap();
    for (how, scale, shift) in [("minmax", 1.0 / 200.0, 0.0), ("standard", 1.0 / 50.0, -2.0)] {
        let fields = options(&[&format!("t[n,h,w]:{how}({})", said.display())], &["s"]);
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        let (scales, _) = set.rescaling(&[]).unwrap();
        assert_eq!(
            (&*scales[0].scale, &*scales[0].shift),
            (&[scale as f32][..], &[shift as f32][..]),
            "{how}"
        );
    }
}

/// Of a file with numbers of several arrays each is rescaled by its own, and what is in doubt is refused.
#[test]
fn arrays_that_rescale_another_are_named_after_it_or_alone() {
    let directory = tempfile::tempdir().unwrap();
    let [path, said] = [file(&directory, "a.h5"), directory.path().join("said.h5")];
    let of = |how: &str, arrays: &[(&str, &[f64])]| {
        let _ = std::fs::remove_file(&said);
        let stats = hdf5::File::create(&said).unwrap();
        for (name, numbers) in arrays {
            if let Some((group, _)) = name.rsplit_once('/') {
                stats.group(group).or_else(|_| stats.create_group(group)).unwrap();
            }
            match numbers {
                [number] => {
                    let array = stats.new_dataset::<f64>().create(*name).unwrap();
                    array.write_scalar(number).unwrap();
                }
                _ => {
                    stats.new_dataset_builder().with_data(*numbers).create(*name).unwrap();
                }
            }
        }
        stats.close().unwrap();
        let fields = options(&[&format!("s:{how}({})", said.display())], &["s"]);
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        let rescaled = set.rescaling(&[]).map_err(|error| error.message)?;
        Ok::<_, String>((rescaled.0[0].scale.clone(), rescaled.1[0].clone().unwrap()))
    };
    let (own, other) = ([2.0; 3], [9.0; 3]);
    for arrays in [
        &[("mean_a", &other[..]), ("mean_s", &own), ("std_a", &other), ("std_s", &own)][..],
        &[("a_mean", &other), ("s_mean", &own), ("s_std", &own), ("std_a", &other), ("mean_b", &other)],
        &[("a/mean", &other), ("a/std", &other), ("s/mean", &own), ("s/std", &own)],
        // One number is that of all channels.
        &[("a/mean", &other), ("a/std", &other), ("s/mean", &own[..1]), ("s/std", &own[..1])],
        &[("mean", &own[..1]), ("std", &own[..1])],
    ] {
        let (scale, said) = of("standard", arrays).unwrap();
        assert_eq!(scale, [0.5; 3], "{arrays:?}");
        assert!(said.starts_with("by ") && said.ends_with("said.h5") && said.contains(" and "), "{said}");
    }
    for (how, arrays, expected) in [
        (
            "standard",
            &[("mean_a", &own[..]), ("mean_b", &own), ("std_a", &own)][..],
            "is in doubt: mean_a of [3], mean_b of [3]; std_a of [3]",
        ),
        ("standard", &[("mean", &own), ("stddev", &own), ("std_err", &other)], "is in doubt"),
        (
            "standard",
            &[("mean_s", &own[..2]), ("std_s", &own)],
            "begins with mean (such names: mean_s of [2])",
        ),
        ("standard", &[("mean", &own), ("std", &[1.0, 0.0, 1.0])], "channel 1: std is 0, and a deviation"),
        (
            "minmax",
            &[("min", &[0.0; 3]), ("max", &[1.0, 1.0, -1.0])],
            "channel 2: min is 0 and max -1, which",
        ),
        ("minmax", &[("min", &[f64::NAN; 3]), ("max", &own)], "channel 0: min or max is no number"),
    ] {
        let error = of(how, arrays).unwrap_err();
        assert!(error.contains(expected) && error.contains("said.h5"), "{arrays:?}: {error}");
    }
}

/// Axes of one place are none, as climate's statistics have them; and a mean in another unit rescales nothing.
#[test]
fn statistics_have_a_number_for_each_channel_in_the_arrays_unit() {
    let directory = tempfile::tempdir().unwrap();
    let [path, said] = [file(&directory, "a.h5"), directory.path().join("said.h5")];
    let unit = |file: &hdf5::File, array: &str, unit: &str| {
        let array = file.dataset(array).unwrap();
        let text: hdf5::types::VarLenUnicode = unit.parse().unwrap();
        array.new_attr::<hdf5::types::VarLenUnicode>().create("units").unwrap().write_scalar(&text).unwrap();
    };
    unit(&hdf5::File::append(&path).unwrap(), "s", "K");
    let stats = hdf5::File::create(&said).unwrap();
    for name in ["mean", "std"] {
        let numbers = ndarray::Array4::from_elem((1, 3, 1, 1), 2.0);
        stats.new_dataset_builder().with_data(&numbers).create(name).unwrap();
    }
    stats.close().unwrap();
    let rescaled = |how: &str| {
        let fields = options(&[&format!("s:{how}({})", said.display())], &["s"]);
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        set.rescaling(&[]).map(|(scales, _)| scales[0].scale.clone()).map_err(|error| error.message)
    };
    assert_eq!(rescaled("standard"), Ok(vec![0.5; 3]));
    unit(&hdf5::File::append(&said).unwrap(), "mean", "K");
    unit(&hdf5::File::append(&said).unwrap(), "std", "degC");
    let error = rescaled("standard").unwrap_err();
    assert!(error.contains("std is in degC, and s in K: convert one"), "{error}");
    assert!(rescaled("log1p:standard").is_ok(), "logarithms have no unit");
}

#[test]
fn a_view_with_a_rescaling_is_read_and_others_are_named() {
    let field: Field = "a/b[n,c]:log1p:standard".parse().unwrap();
    assert_eq!(
        (field.view.to_string(), field.log1p, field.rescaling),
        ("a/b[n,c]".into(), true, Some((Rescaling::Standard, None)))
    );
    let field: Field = "a:minmax(b/stats.h5)".parse().unwrap();
    assert_eq!(field.rescaling, Some((Rescaling::MinMax, Some("b/stats.h5".into()))));
    let field: Field = "a:standard(stats.h5)".parse().unwrap();
    assert_eq!(field.rescaling, Some((Rescaling::Standard, Some("stats.h5".into()))));
    assert_eq!("a:b[n]:minmax".parse::<Field>().unwrap().view.array, "a:b");
    for wrong in ["a:std", "a:standard:log1p", "a[n]:", "a:log1p(b)"] {
        let error = wrong.parse::<Field>();
        assert!(error.unwrap_err().contains("log1p, standard, minmax"), "{wrong}");
    }
}

#[test]
fn arrays_that_would_be_paired_by_chance_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    for (inputs, targets, expected) in [
        (["t[n,h,w]"], ["t[t,h,w]"], "every pair would be a sample"),
        (["mask[h/2,w/3]"], ["s"], "s without brackets numbers samples by its first axis"),
        (["t[n,h/2,w]"], ["t[n,h/4,w]"], "1 tiles along h, and 2 of another array"),
    ] {
        let error = FieldSet::open(None, &path, &options(&inputs, &targets), &[]).err().unwrap().message;
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn weights_of_arrays_in_another_order_are_refused_and_logarithms_are_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let open = |inputs: &[&str]| FieldSet::open(None, &path, &options(inputs, &["s"]), &[]).unwrap();
    let learned = open(&["s:log1p", "s"]);
    let read_so = read(&learned, 2);
    // A flag that leaves out what the weights expect.
    let bare = open(&["s", "s"]).scaled(learned.scales()).unwrap();
    assert_eq!(read(&bare, 2), read_so);
    let tiles = FieldSet::open(None, &path, &options(&["t[n,h,w]", "mask[h,w]"], &["s"]), &[]).unwrap();
    let turned = FieldSet::open(None, &path, &options(&["mask[h,w]", "t[n,h,w]"], &["s"]), &[]).unwrap();
    let error = turned.scaled(tiles.scales()).err().unwrap().message;
    assert!(error.contains("learned from t[n,h,w], where mask[h,w] is given, which"), "{error}");
    // An array that is called otherwise stands for one that is not given.
    let other = options(&["labels[n,h,w]:log1p", "mask[h,w]"], &["s"]);
    let other = FieldSet::open(None, &path, &other, &[]).unwrap().scaled(tiles.scales()).unwrap();
    assert!(!other.list.fields[0].log1p, "as the weights have learned");
}

#[test]
fn files_are_in_the_order_of_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["run10.h5", "run9.h5", "run1b.h5", "run0.h5"] {
        file(&directory, name);
    }
    let set = FieldSet::open(None, directory.path(), &options(&["t"], &["s"]), &[]).unwrap();
    let names = [0, 10, 20, 30].map(|index| set.name(index));
    assert_eq!(names, ["run0.h5 n 0", "run1b.h5 n 0", "run9.h5 n 0", "run10.h5 n 0"]);
}

/// What the system counts of the epoch that ranks read, beside what is said before.
fn read_and_said(path: &Path, fields: &FieldOptions, ranks: usize, batch: usize) -> (u64, Amount) {
    let samples = || Samples::of_fields(FieldSet::open(None, path, fields, &[]).unwrap(), 1);
    let read_so_far = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let sharding = |rank| Sharding { ranks, rank, batch, accumulation: 1, global: None };
    let of_all = samples();
    let orders = TrainingLoader::first_epoch(&of_all, sharding(0), 5).unwrap();
    let (amounts, _) = of_all.fields().unwrap().reading(orders, 1).unwrap();
    let mut counted = 0;
    for rank in 0..ranks {
        let set = samples();
        let numbers = set.fields().unwrap().image().iter().product();
        let mut memory = Batch::of_parts(batch, [numbers, set.target_len()].map(|count| (DType::F32, count)));
        let mut loader = TrainingLoader::new(set, sharding(rank), 5, Reading::inline()).unwrap();
        let begun = read_so_far();
        (0..loader.steps()).for_each(|step| loader.fill(step, 0, &mut memory).unwrap());
        counted += read_so_far() - begun;
    }
    (counted, amounts.into_iter().sum())
}

/// What is predicted of an epoch is what the system counts, also where samples share chunks.
#[test]
fn bytes_of_an_epoch_are_those_that_ranks_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.h5");
    let file = hdf5::File::create(&path).unwrap();
    let x = ndarray::Array3::from_shape_fn((200, 16, 16), |(n, y, x)| ((n * 7 + y * x) as f32 * 0.3).sin());
    let y = x.slice(ndarray::s![.., ..2, ..]).to_owned();
    file.new_dataset_builder().chunk((8, 16, 16)).shuffle().deflate(1).with_data(&x).create("x").unwrap();
    file.new_dataset_builder().chunk((20, 1, 16)).deflate(1).with_data(&y).create("y").unwrap();
    file.new_dataset_builder().with_data(&y).create("z").unwrap();
    file.close().unwrap();
    let fields = options(&["x[n,h,w]"], &["y[n,h,w]", "z[n,h,w]"]);
    for (ranks, batch) in [(1, 8), (2, 8), (3, 1)] {
        let (counted, amount) = read_and_said(&path, &fields, ranks, batch);
        let apart = counted.abs_diff(amount.read) as f64 / counted as f64;
        assert!(apart < 0.01, "{ranks} ranks: {counted} bytes, and not {}", amount.read);
        // Each chunk is read by a rank once for several samples.
        assert!(amount.decoded < 3 * amount.used, "{amount:?}");
    }
}

/// The first file with a sample in each chunk, or with no chunks, and others with several.
#[test]
fn chunks_of_files_that_have_unlike_ones_are_read_once_and_counted() {
    for first in [None, Some((1, 16, 16)), Some((16, 16, 16))] {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..4 {
            let file = hdf5::File::create(directory.path().join(format!("{number}.h5"))).unwrap();
            let of = |(n, y, x)| ((n * 7 + y * x + 31 * number) as f32 * 0.3).sin();
            let x = ndarray::Array3::from_shape_fn((32, 16, 16), of);
            let chunk = match number {
                0 => first,
                3 => None,
                _ => Some((8, 16, 16)),
            };
            let builder = file.new_dataset_builder();
            let builder = match chunk {
                Some(chunk) => builder.chunk(chunk).shuffle().deflate(1),
                None => builder,
            };
            builder.with_data(&x).create("x").unwrap();
        }
        let (counted, amount) = read_and_said(directory.path(), &options(&["x[n,h,w]"], &["x[n,h,w]"]), 1, 8);
        let apart = counted.abs_diff(amount.read) as f64 / counted as f64;
        assert!(apart < 0.02, "{first:?}: {counted} bytes, and not {}", amount.read);
        // But for a few that lie in two windows of the order.
        assert!(amount.decoded < amount.used * 5 / 4, "{first:?}: {amount:?}");
    }
}

/// A tile is an eighth of a chunk, and tiles of two chunks take turns: where they are small no chunk would be better.
#[test]
fn better_chunks_are_named_where_inspect_has_some() {
    let directory = tempfile::tempdir().unwrap();
    for ([rows, along], is_advised) in [([256, 512], true), ([4, 5], false)] {
        let path = directory.path().join(format!("{rows}.h5"));
        let file = hdf5::File::create(&path).unwrap();
        let zeros = ndarray::Array3::<f32>::zeros((8, rows, along));
        file.new_dataset_builder().chunk((4, rows, along)).with_data(&zeros).create("x").unwrap();
        file.close().unwrap();
        let fields = options(&[&format!("x[n,h/{},w]", rows / 2)], &[]);
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        let order = (0..8).flat_map(|tile| [tile, 8 + tile]).collect();
        let (amounts, _) = set.reading([order].into_iter(), 1).unwrap();
        assert_eq!(amounts[0].decoded, 8 * amounts[0].used);
        assert_eq!(set.has_better_chunks(&amounts), is_advised);
    }
}

/// What a device makes of the codes of a sample, by the definition of `Op::Lookup`: bits.
fn looked_up(set: &FieldSet, index: usize) -> Result<[Vec<u32>; 2]> {
    let tables = [set.tables(false), set.tables(true)];
    let counts: [usize; 2] = [set.image().iter().product(), set.target_len()];
    let mut codes = [0, 1].map(|at| Codes::new(tables[at].map_or(DType::F32, |of| of.dtype), counts[at]));
    let mut numbers = counts.map(|count| vec![0.0; count]);
    let mut places = numbers.iter_mut().zip(counts);
    let mut parts = codes.each_mut().map(|codes| {
        let (numbers, count) = places.next().unwrap();
        codes.samples(count.max(1)).next().unwrap_or(CodesMut::Numbers(numbers))
    });
    let missing = set.read_sample(index, &mut parts, [None; 2], &mut Vec::new())?;
    let mut plain = counts.map(|count| vec![0.0; count]);
    let mut parts = plain.each_mut().map(|part| CodesMut::Numbers(part));
    assert_eq!(set.read_sample(index, &mut parts, [None; 2], &mut Vec::new())?, missing);
    let of = |at: usize| {
        let Some(CodeTables { dtype, which, tables }) = tables[at] else { return Vec::new() };
        let codes: Vec<usize> = match &codes[at] {
            Codes::Bytes(codes) => codes.iter().map(|&code| code.into()).collect(),
            Codes::Words(codes) => codes.iter().map(|&code| code.into()).collect(),
        };
        let (run, all) = (codes.len() / which.len(), CodeTables::codes(*dtype));
        let value = |(at, &code): (usize, &usize)| tables[which[at / run] as usize * all + code].to_bits();
        codes.iter().enumerate().map(value).collect()
    };
    Ok([of(0), of(1)])
}

/// Every type of 8 and 16 bits, of either order of bytes, rescaled by channel, as logarithms, packed, with numbers that
/// are missing, of classes, and chunks that were never written: tables give the bits that are read as numbers.
#[test]
fn codes_become_the_numbers_that_are_read_as_such() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/fields.hdf5");
    let of_classes = |fields| FieldOptions { loss: Some("cross-entropy".parse().unwrap()), ..fields };
    let all = |inputs: &[&str], targets: &[&str]| {
        let inputs: Vec<String> = inputs.iter().map(|name| format!("types/{name}")).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        FieldOptions { missing: Missing::Mask, ..options(&inputs, targets) }
    };
    let warm = "temperature[t,h,w]:standard";
    for (fields, kinds, tables) in [
        (all(&["int8"], &[]), "U8", 1),
        (all(&["uint8_chunked[n,c]:standard"], &[]), "U8", 9),
        (all(&["int16_be:minmax"], &["types/uint8:standard"]), "U16 U8", 5),
        (all(&["int16_chunked[n,c]:standard"], &[]), "U16", 9),
        (all(&["uint16:log1p:standard"], &["types/uint16_be"]), "U16 U16", 5),
        (all(&["uint16_chunked:standard"], &[]), "U16", 9),
        (all(&["float16_be:standard"], &["types/float16"]), "U16 U16", 5),
        (all(&["float16_chunked"], &[]), "U16", 1),
        (all(&["int8:standard", "float16", "uint16_be"], &[]), "U16", 7),
        (all(&["int16", "int32"], &["types/int8"]), "U8", 0),
        (FieldOptions { missing: Missing::Zero, ..options(&[warm], &[warm]) }, "U16 U16", 1),
        (FieldOptions { missing: Missing::Mask, ..options(&[warm], &[warm]) }, "U16 U16", 1),
        (of_classes(options(&["temperature[t,c=0..2,w]"], &["labels[t,h,w]"])), "", 0),
    ] {
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
        let width = set.moment_count();
        let moments = (0..set.len())
            .fold(Vec::new(), |all, index| FieldSet::together(all, &set.moments(index).unwrap(), width));
        let (scales, _) = set.rescaling(&moments).unwrap();
        let set = set.scaled(&scales).unwrap().telling_apart(100);
        let what = format!("{:?} {:?}", fields.inputs, fields.targets);
        let types =
            [false, true].map(|of_targets| set.tables(of_targets).map(|of| format!("{:?}", of.dtype)));
        let found = types.into_iter().flatten().collect::<Vec<_>>().join(" ");
        assert!(kinds.is_empty() || found == kinds, "{what}: {found}");
        let count = |of: &CodeTables| of.tables.len() / CodeTables::codes(of.dtype);
        assert!(kinds.is_empty() || set.tables(false).map_or(0, count) == tables, "{what}");
        for index in 0..set.len() {
            let Ok(codes) = looked_up(&set, index) else { panic!("{what}") };
            for (codes, numbers) in codes.iter().zip(read(&set, index)) {
                let numbers: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
                assert!(codes.is_empty() || *codes == numbers, "{what}: {codes:?}, not {numbers:?}");
            }
        }
    }
}

/// What ends a run says the same of codes as of numbers; rows are cut alike.
#[test]
fn codes_that_end_a_run_are_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/fields.hdf5");
    for (fields, classes, expected) in [
        (options(&["temperature[t,h,w]"], &[]), 9, "a number is missing, NaN"),
        (options(&["types/int16:log1p"], &[]), 9, "has no ln(1 + x)"),
        (
            FieldOptions {
                loss: Some("cross-entropy".parse().unwrap()),
                ..options(&["types/int8"], &["types/uint8[n,w]"])
            },
            2,
            "is none of the 2 classes",
        ),
    ] {
        let set = FieldSet::open(None, &path, &fields, &[]).unwrap().telling_apart(classes);
        let messages: Vec<[String; 2]> = (0..set.len())
            .filter_map(|index| {
                let mut sample = [vec![0.0; set.image().iter().product()], vec![0.0; set.target_len()]];
                let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
                let numbers = set.read_sample(index, &mut parts, [None; 2], &mut Vec::new()).err();
                let codes = looked_up(&set, index).err();
                assert_eq!(numbers.is_some(), codes.is_some(), "{expected} {index}");
                Some([numbers?.message, codes?.message])
            })
            .collect();
        assert!(!messages.is_empty(), "{expected}");
        for [numbers, codes] in messages {
            assert!(codes == numbers && codes.contains(expected), "{codes}, not {numbers}");
        }
    }
}

/// Of files of which one is packed otherwise a code stands for two numbers.
#[test]
fn files_that_are_packed_unlike_have_no_codes() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, scale: f64| {
        let file = hdf5::File::create(directory.path().join(name)).unwrap();
        let values = ndarray::Array2::from_shape_fn((4, 3), |(n, c)| (10 * n + c) as i16);
        let array = file.new_dataset_builder().with_data(&values).create("x").unwrap();
        array.new_attr::<f64>().create("scale_factor").unwrap().write_scalar(&scale).unwrap();
    };
    let tables = |path: &Path| {
        let set = FieldSet::open(None, path, &options(&["x"], &[]), &[]).unwrap();
        set.tables(false).map(|of| of.dtype)
    };
    write("a.h5", 0.5);
    write("b.h5", 0.5);
    assert_eq!(tables(directory.path()), Some(DType::U16));
    write("b.h5", 0.25);
    assert_eq!(tables(directory.path()), None);
    assert_eq!(tables(&directory.path().join("b.h5")), Some(DType::U16));
}

/// Rows of a channel lie between those of the channels beside it, and these are not read; nor are they by the look at
/// samples before a run.
#[test]
fn of_rows_no_others_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.h5");
    let file = hdf5::File::create(&path).unwrap();
    let x = ndarray::Array::from_shape_fn((2, 3, 8, 32, 32), |(n, c, d, h, w)| (n + c + d + h + w) as f32);
    file.new_dataset_builder().with_data(&x).create("x").unwrap();
    file.close().unwrap();
    let fields = FieldOptions { missing: Missing::Zero, ..options(&["x[n,c,d,h,w]"], &["x[n,c,d,h,w]"]) };
    let set = FieldSet::open(None, &path, &fields, &[]).unwrap();
    let own = 3 * 2 * 32 * 32;
    let mut sample = [vec![0.0; own], vec![0.0; own]];
    let (rows, mut readers) = (2..4, Vec::new());
    let mut parts = sample.each_mut().map(|part| CodesMut::Numbers(part));
    set.read_sample(1, &mut parts, [Some(&rows); 2], &mut readers).unwrap();
    let read: u64 = readers.iter_mut().map(|reader| reader.take_amount().read).sum();
    assert_eq!(read, 2 * 4 * own as u64);
    assert_eq!(sample[1], x.slice(ndarray::s![1, .., 2..4, .., ..]).iter().copied().collect::<Vec<f32>>());
    let read_so_far = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let begun = read_so_far();
    set.uncounted(4, true).unwrap();
    set.reading([vec![0, 1]].into_iter(), 4).unwrap();
    // Two samples are looked at, and tried, by two fields each.
    let (looked, most) = (read_so_far() - begun, 2 * 2 * 2 * 4 * own as u64);
    assert!(looked < most + 4096, "{looked} bytes, of {most}");
}

/// Behind the last step of a run nothing is read ahead.
#[test]
fn nothing_is_read_behind_the_end_of_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "a.h5");
    let waited = |end: Option<usize>| {
        let samples =
            Samples::of_fields(FieldSet::open(None, &path, &options(&["t"], &["s"]), &[]).unwrap(), 1);
        let sharding = Sharding { ranks: 1, rank: 0, batch: 2, accumulation: 1, global: None };
        let set = samples.fields().unwrap();
        let parts = [set.image().iter().product(), set.target_len()].map(|count| (DType::F32, count));
        let mut batch = Batch::of_parts(2, parts);
        let reading = Reading::new(1, false).unwrap();
        let mut loader = TrainingLoader::new(samples, sharding, 1, reading).unwrap();
        loader.start_epoch(0);
        if let Some(end) = end {
            loader.ends_after(end);
        }
        loader.fill(0, 0, &mut batch).unwrap();
        loader.fill(1, 0, &mut batch).unwrap();
        let begun = std::time::Instant::now();
        while !loader.has(2, 0) && begun.elapsed().as_millis() < 300 {
            std::thread::yield_now();
        }
        loader.has(2, 0)
    };
    assert_eq!([None, Some(3), Some(2)].map(waited), [true, true, false]);
}
