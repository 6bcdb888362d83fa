//! Divides a PE's answers that arrive in pieces, for the fuzz targets.

use super::answers::Answers;

/// Returns the answers in the pieces to requests 0, 1 and so on, and what is wrong with the one that is invalid.
pub fn answers(pieces: impl IntoIterator<Item = Vec<u8>>) -> Vec<Result<Vec<u8>, String>> {
    let (mut answers, mut divided) = (Answers::default(), Vec::new());
    for piece in pieces {
        answers.received.extend_from_slice(&piece);
        loop {
            match answers.next(divided.len() as u32) {
                Ok(Some(answer)) => divided.push(Ok(answer.to_vec())),
                Ok(None) => break,
                Err(error) => {
                    divided.push(Err(error.to_string()));
                    return divided;
                }
            }
        }
        answers.settle(true);
    }
    divided
}
