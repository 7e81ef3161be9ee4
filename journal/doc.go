// Package journal remembers every operation so that whoever comes after a crash knows what was meant, what happened and
// what nobody knows.
//
// A step is written down before it acts (its intent, committed to disk) and again after it acted (its outcome). A step with
// an intent and no outcome is in doubt: it may have happened. It is never repeated on that ground; someone looks at the
// world and settles it. Entries are only ever added, in one order, and every write checks in its own transaction that no
// newer epoch has taken the operation over (ErrFenced), so a writer that was paused and wakes up writes nothing.
//
// One fleet has at most one unfinished operation; the store itself refuses a second.
package journal
