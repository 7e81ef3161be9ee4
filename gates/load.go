package gates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/qnetops/qnetops/internal/rustlex"
)

// places are where the gates may stand below a folder that is given: the repository, the crate, or its source folder.
var places = []string{File, "src/feature_gates.rs", "feature_gates.rs"}

var commit = regexp.MustCompile(`^[0-9a-f]{7,40}$`)

// IsCommit reports whether s has the form of a commit id. A build stamp of another form names no source, and an empty one
// would make git read its index instead of a commit.
func IsCommit(s string) bool { return commit.MatchString(s) }

// SourceError is a source of gates that cannot be had.
type SourceError struct {
	Spec, Why, Do string
	Err           error
}

func (e *SourceError) Error() string {
	text := fmt.Sprintf("gates of %s: %s", e.Spec, e.Why)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *SourceError) Unwrap() error { return e.Err }

// Hint says what to give instead.
func (e *SourceError) Hint() string {
	if e.Do != "" {
		return e.Do
	}
	return "give feature_gates.rs, a folder of the node's source, or FOLDER@COMMIT"
}

// Load reads the gates from a feature_gates.rs, from a folder of the node's source, or from FOLDER@COMMIT, a revision of the
// git repository there. The errors are *SourceError, or tomlfile.Problems for content that is no list of gates.
func Load(ctx context.Context, spec string) (Set, error) {
	info, err := os.Stat(spec)
	if err == nil && info.IsDir() {
		return loadFolder(spec)
	}
	if err == nil {
		return loadFile(spec)
	}
	if at := strings.LastIndex(spec, "@"); at >= 0 {
		dir := spec[:at]
		if dir == "" {
			dir = "."
		}
		return LoadCommit(ctx, dir, spec[at+1:])
	}
	return Set{}, &SourceError{Spec: spec, Why: "cannot be read", Err: bare(err)}
}

// bare drops the path from an error, which the message has already named.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func loadFolder(dir string) (Set, error) {
	for _, rel := range places {
		name := filepath.Join(dir, filepath.FromSlash(rel))
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			return loadFile(name)
		}
	}
	return Set{}, &SourceError{Spec: dir, Why: "the folder holds no " + File}
}

func loadFile(name string) (Set, error) {
	data, err := readFile(name)
	if err != nil {
		return Set{}, &SourceError{Spec: name, Why: "cannot be read", Err: bare(err)}
	}
	dir := filepath.Dir(name)
	return parse(name, data, func(rel string) ([]byte, string, error) {
		file := filepath.Join(dir, filepath.FromSlash(rel))
		data, err := readFile(file)
		return data, file, err
	})
}

// readFile reads a regular file of a size that source has.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is no regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, rustlex.MaxSize+1))
	if err == nil && len(data) > rustlex.MaxSize {
		return nil, fmt.Errorf("is larger than %d bytes", rustlex.MaxSize)
	}
	return data, err
}

// LoadCommit reads the gates of one commit of the git repository in dir. The id must be 7 to 40 lower-case hex digits and name
// a commit that starts with them: a branch moves, and a branch may be called deadbeef.
func LoadCommit(ctx context.Context, dir, id string) (Set, error) {
	spec := dir + "@" + id
	if !IsCommit(id) {
		return Set{}, &SourceError{Spec: spec, Why: fmt.Sprintf("%q is no commit id", id), Do: "a commit is named by 7 to 40 lower-case hex digits (git rev-parse BRANCH); branches and tags move"}
	}
	full, err := git(ctx, dir, "rev-parse", "--verify", "--quiet", id+"^{commit}")
	if err != nil {
		return Set{}, &SourceError{Spec: spec, Why: "there is no such commit", Err: err, Do: "git fetch in " + dir + ", or correct the id"}
	}
	hash := strings.TrimSpace(string(full))
	if !strings.HasPrefix(hash, id) {
		return Set{}, &SourceError{Spec: spec, Why: fmt.Sprintf("%s is the name of a branch or tag at %s", id, hash), Do: "give the commit's own id"}
	}
	show := func(rel string) ([]byte, error) {
		return git(ctx, dir, "show", "--no-textconv", hash+":./"+rel)
	}
	for _, rel := range places {
		data, err := show(rel)
		if ctx.Err() != nil {
			return Set{}, fmt.Errorf("reading %s: %w", spec, ctx.Err())
		}
		if err != nil {
			continue
		}
		name := func(rel string) string { return dir + "@" + hash[:12] + ":" + rel }
		s, err := parse(name(rel), data, func(other string) ([]byte, string, error) {
			file := path.Join(path.Dir(rel), other)
			data, err := show(file)
			return data, name(file), err
		})
		s.Commit = hash
		return s, err
	}
	return Set{}, &SourceError{Spec: spec, Why: "the commit holds no " + File}
}

// git runs git in dir and returns what it prints. Variables that would point it at another repository are not passed on.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_COMMON_DIR":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			return nil, errors.New(strings.ReplaceAll(text, "\n", " "))
		}
		return nil, err
	}
	return out.Bytes(), nil
}
