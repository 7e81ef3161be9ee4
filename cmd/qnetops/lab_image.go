package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/qnetops/qnetops/lab/simnode"
	"github.com/qnetops/qnetops/manifest"
)

func labImageCommand(s streams, dir cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "image", ArgsUsage: "TAG MANIFEST", Usage: "add a release to the lab's registry: qnet:v2 with a restart manifest",
		Description: "What cutting a release is on a real network. MANIFEST is a file of restart record --manifest (.toml or .json). A malformed one is taken,\n" +
			"as a build takes it: the node refuses it when it starts. The answer has the digest that restart record --image wants.",
		Flags: []cli.Flag{dir}, Action: func(c *cli.Context) error { return runLabImage(c, s) },
	}
}

// labImage is the answer of lab image (qnetops/lab-image/v1).
type labImage struct {
	Schema string `json:"schema"`
	Image  string `json:"image"` // by digest
	Ref    string `json:"ref"`   // by tag
	Build  string `json:"build"` // QNET_BUILD_ID
}

func runLabImage(c *cli.Context, s streams) error {
	g, err := readGlobals(c, s)
	if err != nil {
		return err
	}
	if c.NArg() != 2 {
		return &usageError{text: "lab image takes TAG and MANIFEST", hint: "qnetops restart record --manifest FILE EVIDENCE… writes a manifest; then qnetops lab image restart FILE"}
	}
	loaded, err := manifest.Load(c.Args().Get(1))
	if err != nil {
		return err
	}
	handle, err := openLab(c.Context, c.String("dir"))
	if err != nil {
		return err
	}
	added, err := addLabImage(func(tag string, raw []byte) (simnode.AddedImage, error) { return handle.AddImage(c.Context, tag, raw) }, c.Args().First(), loaded.Manifest)
	if err != nil {
		return &usageError{text: err.Error(), hint: "any other tag will do, such as restart"}
	}
	doc := labImage{"qnetops/lab-image/v1", byDigest(added), added.Ref, added.Build}
	if g.json {
		return printJSON(s.out, doc)
	}
	fmt.Fprintf(s.out, "image:  %s\nbuild:  %s\nalso:   %s\nnext:   qnetops restart record … --image %s\n", doc.Image, doc.Build, doc.Ref, doc.Image)
	return nil
}

// addLabImage adds a release with a manifest to a lab.
func addLabImage(add func(tag string, raw []byte) (simnode.AddedImage, error), tag string, m manifest.Manifest) (simnode.AddedImage, error) {
	raw, err := m.JSON()
	if err != nil {
		return simnode.AddedImage{}, err
	}
	return add(tag, raw)
}

// byDigest is the name of an image that nobody can move.
func byDigest(added simnode.AddedImage) string {
	at := len(added.Ref)
	for at > 0 && added.Ref[at-1] != ':' {
		at--
	}
	return added.Ref[:max(at-1, 0)] + "@" + added.Digest
}
