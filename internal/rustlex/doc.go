// Package rustlex reads as much Rust as is needed to find constants in the node's source: tokens, and the items of a module.
//
// Searching source text with patterns finds heights in prose and constants that are commented out. Here comments, strings and
// nested modules are what they are to the compiler, so a name only counts where the compiler would see an item of that name.
// What is not needed to find an item (types, bodies, macros) is passed over as balanced tokens.
//
//	tokens, err := rustlex.Lex(src)   // *Error with line, column and reason
//	items := rustlex.Items(tokens)    // what stands at the top level
//
// Every token knows its bytes in the source, so that one value can be replaced and nothing else changed.
package rustlex
