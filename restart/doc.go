// Package restart makes the most dangerous decision in a chain's life a computation that anyone can repeat: from which
// macroblock K a stalled or forged chain resumes, who is barred, and what is published before anybody executes it.
//
// The order of things: each operator gathers evidence from the nodes of his own hosts and signs it (Gather, Sign); the
// files of all operators are read and merged (Merge), and whatever is not to be believed is named and left out; K is
// chosen from the merged evidence alone (Propose), so that two people with the same files come to the same K; identities
// to bar are proposed with the evidence against each (Exclude); all of it is written into one folder that names the hash of
// every file in it (Record), and any other operator recomputes that folder from his own hosts before he acts on it
// (Verify). The archive check says beforehand whether a node that joins could fetch the state it will need.
//
// Rules that hold everywhere in the package: a value that was not seen is unknown, and unknown never passes; hashes are
// recomputed from fields and never copied from an answer; no value rests on one node's word; there is no majority, a
// disagreement stops.
package restart
