//! Which images of tar files are for training and which to test on, and of which class each is.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::about::InputSummary;
use super::doubts::{self, Meant};
use super::members::{Entry, TarMembers};
use super::split::{DataSplit, part};

/// What is wrong, and the number of the file that it is about.
type Checked<T> = Result<T, (usize, String)>;

/// Images with their classes, by part.
pub struct ImageList {
    pub training: Vec<(Entry, i32)>,
    pub test: Vec<(Entry, i32)>,
    pub classes: Vec<String>,
}

/// Lays out what the files have. `parts`: what the name of each says.
///
/// # Errors
/// An image without a class; what is doubtful.
pub fn of(
    mut members: TarMembers,
    parts: &[Option<DataSplit>],
    (path, meant): (&Path, Meant),
    about: &mut InputSummary,
) -> Checked<ImageList> {
    about.left_out.join(members.take_left_out());
    let keyed = members.are_keyed();
    if keyed {
        one_of_each_sample(&mut members, about);
    }
    let prefix = common(&members.images, keyed);
    let trees = inner_parts(&members.images, prefix, keyed, about);
    let mut laid = [Vec::new(), Vec::new()];
    for entry in std::mem::take(&mut members.images) {
        let directory = entry.directories().nth(prefix);
        let inner = directory.and_then(part).map(|(part, word)| (part, Some(word)));
        let of_file = parts[entry.file].map(|part| (part, None));
        let part = if trees.is_some() {
            inner.or(of_file)
        } else {
            Some(of_file.unwrap_or((DataSplit::Training, None)))
        };
        match (part, &trees) {
            (None, _) => about.left_out.add("images beside the parts", directory.unwrap_or(&entry.name)),
            (Some((DataSplit::Test, Some(word))), Some(test)) if Some(word) != *test => {
                about
                    .left_out
                    .add("images of parts besides the one to test on", directory.unwrap_or_default());
            }
            (Some((part, word)), _) => {
                let skipped = prefix + usize::from(word.is_some() && trees.is_some());
                laid[usize::from(part == DataSplit::Test)].push((entry, skipped));
            }
        }
    }
    say_where(about, trees.is_some(), parts);
    let says_training = trees.is_some() || parts.contains(&Some(DataSplit::Training));
    about.only_training = says_training && laid[1].is_empty();
    let [training, test] = laid;
    let has_class = |(entry, prefix): &(Entry, usize)| match keyed {
        true => sample(&members, entry).is_some(),
        false => entry.directories().nth(*prefix).is_some(),
    };
    if meant == Meant::ToPredict && !training.iter().chain(&test).all(has_class) {
        let [training, test] =
            [training, test].map(|part| part.into_iter().map(|(entry, _)| (entry, 0)).collect());
        return Ok(ImageList { training, test, classes: Vec::new() });
    }
    if keyed {
        by_number(training, test, &members, about)
    } else {
        by_directory(training, test, (path, meant), about)
    }
}

/// Where the parts come from, for the reader.
fn say_where(about: &mut InputSummary, trees: bool, parts: &[Option<DataSplit>]) {
    let of = |wanted: DataSplit| parts.iter().filter(|part| **part == Some(wanted)).count();
    let files = |count: usize| if count == 1 { "1 file".to_string() } else { format!("{count} files") };
    about.from = match (trees, of(DataSplit::Training), of(DataSplit::Test)) {
        (true, ..) => ["directories called train".into(), "directories called val or test".into()],
        (_, 0, 0) => [files(parts.len()), "by no name".into()],
        (_, _, test) => [files(parts.len() - test), if test > 0 { files(test) } else { String::new() }],
    };
}

/// How many outer directories all images share, that mean nothing: neither a part, nor, where they are not `keyed`, the
/// classes.
fn common(images: &[Entry], keyed: bool) -> usize {
    let Some(first) = images.first() else { return 0 };
    let first: Vec<&str> = first.directories().collect();
    let mut shared = first.len();
    for entry in images {
        let alike = entry.directories().zip(&first).take_while(|(own, of_first)| own == *of_first).count();
        let most = if keyed { usize::MAX } else { entry.directories().count().saturating_sub(1) };
        shared = shared.min(alike).min(most);
        if shared == 0 {
            break;
        }
    }
    first[..shared].iter().position(|name| part(name).is_some()).unwrap_or(shared)
}

/// Whether directories say which part images are of: then the word of the directory to test on, if there is one.
#[allow(clippy::option_option)]
fn inner_parts(
    images: &[Entry],
    prefix: usize,
    keyed: bool,
    about: &mut InputSummary,
) -> Option<Option<usize>> {
    let mut training = false;
    let (mut words, mut flat) = (BTreeSet::new(), false);
    for entry in images {
        let mut directories = entry.directories().skip(prefix);
        let found = directories.next().and_then(part);
        let has_class = keyed || directories.next().is_some();
        match found {
            Some((DataSplit::Training, _)) => training |= has_class,
            Some((DataSplit::Test, word)) if has_class => _ = words.insert(word),
            Some((DataSplit::Test, _)) => flat = true,
            None => {}
        }
    }
    if training && flat {
        about
            .notes
            .push("images to test on lie in no directory for their class: nothing is tested on them".into());
    }
    training.then(|| words.first().copied())
}

/// Why images to test on are left out.
const UNLABELLED: &str = "images to test on without a class";

type Laid = Vec<(Entry, usize)>;

fn by_directory(
    training: Laid,
    test: Laid,
    (path, meant): (&Path, Meant),
    about: &mut InputSummary,
) -> Checked<ImageList> {
    let class = |entry: &Entry, prefix: usize| {
        let what =
            || format!("{}: no .cls file beside it, nor in a directory that names its class", entry.name);
        entry.directories().nth(prefix).map(String::from).ok_or_else(|| (entry.file, what()))
    };
    let named = |(entry, prefix): (Entry, usize)| class(&entry, prefix).map(|class| (entry, class));
    let training: Vec<(Entry, String)> = training.into_iter().map(named).collect::<Checked<_>>()?;
    let names: BTreeSet<&String> = training.iter().map(|(_, class)| class).collect();
    let classes: Vec<String> = names.into_iter().cloned().collect();
    if meant == Meant::Unsaid {
        let checked = doubts::check_names(path, &classes, "tar").and_then(|()| names_mean(&training));
        checked.map_err(|error| (training.first().map_or(0, |(entry, _)| entry.file), error))?;
    }
    about.notes.extend(doubts::order(&classes));
    let label = |class: &String| classes.binary_search(class).ok().map(|label| label as i32);
    let mut tested = Vec::with_capacity(test.len());
    for (entry, prefix) in test {
        match class(&entry, prefix).map(|class| label(&class).ok_or(class)) {
            Ok(Ok(label)) => tested.push((entry, label)),
            Ok(Err(class)) => {
                return Err((entry.file, format!("{}: {}", entry.name, doubts::unknown(&class, &classes))));
            }
            Err(_) => about.left_out.add(UNLABELLED, &entry.name),
        }
    }
    let labelled = |(entry, class): (Entry, String)| (entry, label(&class).unwrap_or_default());
    let training = training.into_iter().map(labelled).collect();
    Ok(ImageList { training, test: tested, classes })
}

/// Checks the names of images to train on, from their classes on.
///
/// # Errors
/// What else they may be.
fn names_mean(training: &[(Entry, String)]) -> Result<(), String> {
    let from_class = |(entry, class): &(Entry, String)| {
        let mut parts = std::iter::once(0).chain(entry.name.match_indices('/').map(|(at, _)| at + 1));
        let is_class = |at: &usize| {
            entry.name[*at..].strip_prefix(class.as_str()).is_some_and(|behind| behind.starts_with('/'))
        };
        parts.find(is_class).unwrap_or(0)
    };
    let name = |of: usize| &training[of].0.name[from_class(&training[of])..];
    let looked_at: Vec<&str> = doubts::spread(training.len()).map(name).collect();
    // Most sets have no name that may be a mask's: then nobody asks.
    let all = LazyCell::new(|| (0..training.len()).map(name).collect::<HashSet<&str>>());
    let found = doubts::by_files(&looked_at, |name| all.contains(name));
    found.map_or(Ok(()), |what| Err(format!("{what}; if it is meant so, say --data-format tar")))
}

fn by_number(
    training: Laid,
    test: Laid,
    members: &TarMembers,
    about: &mut InputSummary,
) -> Checked<ImageList> {
    let label = |(entry, _): (Entry, usize)| match sample(members, &entry) {
        Some((_, label)) => Ok((entry, label)),
        None => Err((entry.file, format!("{} has no .cls file beside it", entry.name))),
    };
    let training: Vec<(Entry, i32)> = training.into_iter().map(label).collect::<Checked<_>>()?;
    let labelled = |(entry, prefix): (Entry, usize)| match sample(members, &entry) {
        Some(_) => label((entry, prefix)).ok(),
        None => {
            about.left_out.add(UNLABELLED, &entry.name);
            None
        }
    };
    let test: Vec<(Entry, i32)> = test.into_iter().filter_map(labelled).collect();
    let most = training.iter().chain(&test).map(|(_, label)| label + 1).max().unwrap_or(0);
    Ok(ImageList { training, test, classes: (0..most).map(|class| class.to_string()).collect() })
}

/// The class of an image, and by which name it was found: its path without the ending, or by WebDataset's rule up to
/// the first dot of the file's own name.
fn sample<'a>(members: &TarMembers, entry: &'a Entry) -> Option<(&'a str, i32)> {
    let stem = entry.name.rsplit_once('.').map_or(&*entry.name, |(stem, _)| stem);
    let found = |name: &'a str| members.numbers[entry.file].get(name).map(|&label| (name, label));
    found(stem).or_else(|| found(key(&entry.name)))
}

/// WebDataset's key: a path up to the first dot of the file's own name.
fn key(name: &str) -> &str {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let end = name[base..].find('.').map_or(name.len(), |dot| base + dot);
    &name[..end]
}

/// Leaves one image of each sample: others with the same key are masks and the like. The one whose name is the key and
/// one ending comes first, and JPEG before PNG.
fn one_of_each_sample(members: &mut TarMembers, about: &mut InputSummary) {
    let mut best: HashMap<(usize, &str), (bool, bool, usize)> = HashMap::new();
    let mut further = Vec::new();
    for (number, entry) in members.images.iter().enumerate() {
        let Some((name, _)) = sample(members, entry) else { continue };
        let ending = &entry.name[name.len()..];
        let rank = (ending.matches('.').count() > 1, ending.to_ascii_lowercase().ends_with("png"), number);
        let place = best.entry((entry.file, name)).or_insert(rank);
        if *place != rank {
            further.push(rank.max(*place).2);
            *place = rank.min(*place);
        }
    }
    if further.is_empty() {
        return;
    }
    further.sort_unstable();
    for &number in &further {
        let name = &members.images[number].name;
        about.left_out.add("further images of samples", &name[key(name).len()..]);
    }
    members.remove(further);
}
