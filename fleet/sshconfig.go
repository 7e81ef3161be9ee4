package fleet

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// sshConfig asks `ssh -G` for the settings ssh itself would use. Reading
// ~/.ssh/config here would mean to understand Match blocks, which ask about
// users, networks and the answers of commands.
type sshConfig struct {
	getenv func(string) string
	run    func(ctx context.Context, args ...string) ([]byte, error)

	mu    sync.Mutex
	known map[string]sshSettings
}

func newSSHConfig(getenv func(string) string) *sshConfig {
	return &sshConfig{getenv: getenv, known: map[string]sshSettings{}, run: func(ctx context.Context, args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "ssh", args...).Output()
	}}
}

// sshSettings is the part of an answer that this program follows.
type sshSettings struct {
	hostname, user string
	port           int
	keys           []string // that exist
	only           bool
	jump           string
	knownHosts     []string
	alias          string
	command        string // ProxyCommand, which is not supported
}

// ask returns the settings for an address; the user and port that hosts.toml
// names are told to ssh, since Match blocks may depend on them.
func (s *sshConfig) ask(ctx context.Context, address, user string, port int) (sshSettings, error) {
	args := []string{"-G"}
	if user != "" {
		args = append(args, "-l", user)
	}
	if port != 0 {
		args = append(args, "-p", strconv.Itoa(port))
	}
	args = append(args, "--", address)
	key := strings.Join(args, "\x00")
	s.mu.Lock()
	have, ok := s.known[key]
	s.mu.Unlock()
	if ok {
		return have, nil
	}
	out, err := s.run(ctx, args...)
	if err != nil {
		return sshSettings{}, fmt.Errorf("asking ssh -G for the settings of %s: %w", address, err)
	}
	set := parseSettings(out, s.getenv("HOME"))
	s.mu.Lock()
	s.known[key] = set
	s.mu.Unlock()
	return set, nil
}

func parseSettings(out []byte, home string) sshSettings {
	var set sshSettings
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		word, value, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "hostname":
			set.hostname = value
		case "user":
			set.user = value
		case "port":
			set.port, _ = strconv.Atoi(value)
		case "identityfile":
			// ssh names its default files too; what does not exist is not meant.
			if file := expandHome(value, home); exists(file) || exists(file+".pub") {
				set.keys = append(set.keys, file)
			}
		case "identitiesonly":
			set.only = value == "yes"
		case "proxyjump":
			if value != "none" {
				set.jump = value
			}
		case "proxycommand":
			if value != "none" {
				set.command = value
			}
		case "hostkeyalias":
			set.alias = value
		case "userknownhostsfile", "globalknownhostsfile":
			for file := range strings.FieldsSeq(value) {
				if file = expandHome(file, home); exists(file) {
					set.knownHosts = append(set.knownHosts, file)
				}
			}
		}
	}
	return set
}

func expandHome(file, home string) string {
	if strings.HasPrefix(file, "~/") {
		return filepath.Join(home, file[2:])
	}
	return file
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// ProxyCommandError says that ssh's settings want a program between this one
// and the host.
type ProxyCommandError struct{ Host, Command string }

func (e *ProxyCommandError) Error() string {
	return fmt.Sprintf("host %s: ssh's settings have a ProxyCommand (%s), which is not supported", e.Host, e.Command)
}

// Hint names the way that works.
func (e *ProxyCommandError) Hint() string {
	return "name the jump host under jump in hosts.toml, or use ProxyJump in ~/.ssh/config"
}
