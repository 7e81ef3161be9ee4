// Package manifest handles the restart manifest: the macroblock a release resumes the chain from, the pin that says which one
// that is, and the identities it bars.
//
// A restart re-roots the trust of the whole network, and the values are copied by hand from a publication into the node's
// source. So there is one value, Manifest, and three forms of it that are read strictly and written exactly: TOML, JSON, and
// the five constants of the node's genesis_constants.rs. What is read from one form and written in another is the same value.
//
//	f, err := manifest.Load("restart.toml")        // or .json, or genesis_constants.rs itself
//	faults := manifest.Validate(f.Manifest, manifest.Known{})
//	text := manifest.Render(f.Manifest)            // the constants to paste
//	out, err := manifest.Patch(name, src, f.Manifest) // a source file with only these values changed
//
// Validate holds the node's own rules in the node's order, so that a release which would refuse to start is found before it is
// built, and then the ones that the node leaves out.
package manifest
