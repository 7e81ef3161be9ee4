// Package ledger shows nodes of a stalled chain with a sealed history of any length, for everything that has to read
// history rather than watch a chain move: gathering evidence, finding a fork point among 100,000 macroblocks, choosing
// the macroblock a restart resumes from.
//
// A [Ledger] is a chain that stands still. It follows from a seed: only the hashes of its macroblocks are kept (32 bytes
// each), everything else is computed when it is asked for. Any number of nodes, of any number of operators, can share
// one; a [Node] answers over HTTP what a real node answers, in the shapes and with the traps that the simulated node of
// lab/simnode has, and refuses what it does not know. What a node has wrong is named (see [Kinds]), can be combined, and
// can be drawn from a seed.
//
// Certificates are signed with ML-DSA-65 when they are asked for. A thousand members cost a fraction of a second for the
// first answer.
package ledger
