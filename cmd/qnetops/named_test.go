package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// named finds where a text names a command of the program, with the words after it.
var named = regexp.MustCompile(`\bqnetops((?: [a-z][a-z-]*)+)`)

// prose are the words after the program's name, or a command's, that are a sentence's and no command's.
var prose = []string{"binary", "for", "on", "wrote", "qnetops", "halt that", "rehearse with", "restart is", "lab database"}

// TestEveryNamedCommandExists: a hint, a reason or a help text that says `qnetops WORD` sends people to a command that there is.
func TestEveryNamedCommandExists(t *testing.T) {
	commands, found := newApp(streams{}).Commands, 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			text, at := literal(n)
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				found++
				if wrong := notACommand(commands, strings.Fields(m[1])); wrong != "" {
					t.Errorf("%s: %q names qnetops %s, which is no command", files.Position(at), text, wrong)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 50 {
		t.Errorf("only %d places found that name a command", found)
	}
}

func literal(n ast.Node) (string, token.Pos) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", token.NoPos
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return "", token.NoPos
	}
	return text, lit.Pos()
}

// notACommand follows words through the commands and returns them up to the first that is none; "" where all is well: the words
// lead to a command without subcommands, or end before.
func notACommand(commands []*cli.Command, words []string) string {
	for i, word := range words {
		path := strings.Join(words[:i+1], " ")
		at := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) })
		switch {
		case at < 0 && slices.Contains(prose, path):
			return ""
		case at < 0:
			return path
		}
		if commands = commands[at].Subcommands; len(commands) == 0 {
			return ""
		}
	}
	return ""
}

// TestNotACommand: the words of a sentence behind a command are not taken for one, misspelt and unknown ones are.
func TestNotACommand(t *testing.T) {
	commands := newApp(streams{}).Commands
	for words, want := range map[string]string{
		"status shows the fleet": "", "hosts check says more": "", "halt": "", "restart is for": "", "halt release": "",
		"diagnoze": "diagnoze", "hosts look": "hosts look", "restart proposek": "restart proposek",
	} {
		if got := notACommand(commands, strings.Fields(words)); got != want {
			t.Errorf("%q: got %q, want %q", words, got, want)
		}
	}
}
