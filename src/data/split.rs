//! Which part of a data set a name stands for: one rule for directories, tar files and directories within these.

/// A part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataSplit {
    Training,
    Test,
}

/// Words for parts, in small letters; of several for testing the first that is there is tested on.
const TRAINING: [&str; 2] = ["train", "training"];
const TEST: [&str; 8] = ["val", "valid", "validation", "dev", "test", "testing", "eval", "holdout"];

/// The part that a directory's name stands for, and the place of its word in the list of that part: in any case of
/// letters, with or without a number behind ("Train", "val2017").
pub fn part(name: &str) -> Option<(DataSplit, usize)> {
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '.'));
    let place = |words: &[&str]| words.iter().position(|known| word.eq_ignore_ascii_case(known));
    let training = place(&TRAINING).map(|place| (DataSplit::Training, place));
    training.or_else(|| place(&TEST).map(|place| (DataSplit::Test, place)))
}

/// Whether it is called as a part of a cross-validation is ("fold3").
pub fn is_fold(name: &str) -> bool {
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['-', '_']);
    word.len() < name.len() && word.eq_ignore_ascii_case("fold")
}

/// What the words of a longer name say, of those that are called as parts are.
fn words(name: &str) -> impl Iterator<Item = (DataSplit, usize)> {
    name.split(|c: char| !c.is_ascii_alphabetic()).filter_map(part)
}

/// The parts whose words are among those of a longer name ("imagenet-train-000017.tar", "seg_test").
pub fn parts_within(name: &str) -> Vec<DataSplit> {
    let mut parts: Vec<DataSplit> = words(name).map(|(part, _)| part).collect();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// The part that a file's name says, where it says one, with the place of its word as `part` has it.
pub fn part_of_file(name: &str) -> Option<(DataSplit, usize)> {
    let mut words = words(name);
    let first = words.next()?;
    words.all(|(part, _)| part == first.0).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_by_whole_words_in_any_case() {
        for name in ["train", "Train", "TRAINING", "train2017", "train_"] {
            assert_eq!(part(name).map(|(part, _)| part), Some(DataSplit::Training), "{name}");
        }
        for name in ["val", "Valid", "validation", "TEST", "testing", "val2017", "dev", "holdout", "eval_1"] {
            assert_eq!(part(name).map(|(part, _)| part), Some(DataSplit::Test), "{name}");
        }
        for name in ["trainer", "testament", "streetcar", "trains", "bullet_train", "2017", ""] {
            assert_eq!(part(name), None, "{name}");
        }
        assert!(is_fold("fold1") && is_fold("Fold_02") && !is_fold("folder1") && !is_fold("fold"));
        assert_eq!(part_of_file("imagenet1k-train-0001.tar"), Some((DataSplit::Training, 0)));
        assert_eq!(part_of_file("ILSVRC2012_img_val.tar"), Some((DataSplit::Test, 0)));
        assert_eq!(part_of_file("test0.tar"), Some((DataSplit::Test, 4)));
        assert_eq!(part_of_file("testament-1.tar"), None);
        assert_eq!(part_of_file("train-test.tar"), None);
    }
}
