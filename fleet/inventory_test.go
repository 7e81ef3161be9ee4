package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/qnetops/qnetops/internal/tomlfile"
)

func load(t *testing.T, text string) (*Inventory, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

const smallest = `fleet = "f"
[[host]]
id = "001"
address = "192.0.2.1"
role = "genesis"
`

func TestDefaults(t *testing.T) {
	inv, err := load(t, smallest+`
[[host]]
id = "006"
address = "192.0.2.6"
role = "super"
`)
	if err != nil {
		t.Fatal(err)
	}
	if inv.Name != "f" || inv.Block != time.Second || inv.Registry != "" || inv.LogArchive != "/root/qnet-logs" {
		t.Errorf("inventory %+v", inv)
	}
	home, _ := os.UserHomeDir()
	want := SSH{KnownHosts: []string{filepath.Join(home, ".ssh/known_hosts")}, IdentitiesOnly: true, ConnectTimeout: 10 * time.Second, Keepalive: 10 * time.Second, Fanout: 64, Starts: 8}
	if !reflect.DeepEqual(inv.SSH, want) {
		t.Errorf("ssh %+v, want %+v", inv.SSH, want)
	}
	genesis := Host{ID: "001", Address: "192.0.2.1", Port: 22, User: "root", Container: "qnet-genesis-001", APIPort: 8001, Role: RoleGenesis, Sudo: true, EngineSocket: "/var/run/docker.sock"}
	if inv.Hosts[0] != genesis {
		t.Errorf("host %+v, want %+v", inv.Hosts[0], genesis)
	}
	if inv.Hosts[1].Container != "qnet-super-node" {
		t.Errorf("container of a super node is %s", inv.Hosts[1].Container)
	}
	if inv.Hosts[0].NeedsSudo() {
		t.Error("root needs sudo")
	}
}

func TestHostFieldsWinOverSSH(t *testing.T) {
	inv, err := load(t, `fleet = "f"
[ssh]
user = "ops"
port = 2222
jump = "bastion.example.org"
[[host]]
id = "001"
address = "192.0.2.1"
role = "genesis"
jump = ""
port = 22
[[host]]
id = "002"
address = "192.0.2.2"
role = "genesis"
user = "root"
sudo = false
`)
	if err != nil {
		t.Fatal(err)
	}
	one, two := inv.Hosts[0], inv.Hosts[1]
	if one.User != "ops" || one.Port != 22 || one.Jump != "" || !one.NeedsSudo() {
		t.Errorf("host 001 %+v", one)
	}
	if two.User != "root" || two.Port != 2222 || two.Jump != "bastion.example.org" || two.NeedsSudo() {
		t.Errorf("host 002 %+v", two)
	}
}

// Every fault is reported at once, with its line and key.
func TestEveryFaultAtOnce(t *testing.T) {
	text := `fleet = "my fleet"
surplus = 1
[chain]
block = "soon"
[images]
registry = "https://registry.example.org"
[ssh]
connect_timeout = "1h"
fanout = 0
key = "no-such-key"
[logs]
archive = "relative"
[[host]]
id = "001"
address = "192.0.2.1"
role = "genesis"
[[host]]
id = "001"
address = "192.0.2.1"
role = "validator"
port = 70000
user = "a b"
[[host]]
id = "003"
address = "root@192.0.2.3:22"
role = "super"
container = "x y"
api_port = 0
engine_socket = "docker.sock"
jump = "004"
[[host]]
id = "004"
address = "192.0.2.4"
role = "super"
jump = "003"
[[host]]
address = "192.0.2.5"
jump = "bastion:99999"
[[host]]
id = "007"
address = "192.0.2.1"
role = "genesis"
colour = "blue"
`
	_, err := load(t, text)
	var problems tomlfile.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("%T %v", err, err)
	}
	have := map[string]int{}
	for _, p := range problems {
		have[p.Key] = p.Line
		if p.Hint == "" {
			t.Errorf("no hint: %s", p)
		}
		if !strings.HasSuffix(p.File, "hosts.toml") {
			t.Errorf("no file: %+v", p)
		}
	}
	lines := strings.Split(text, "\n")
	at := func(line string, nth int) int {
		for i, l := range lines {
			if l == line {
				if nth--; nth == 0 {
					return i + 1
				}
			}
		}
		t.Fatalf("no line %q", line)
		return 0
	}
	want := map[string]int{
		"fleet": 1, "surplus": 2, "chain.block": 4, "images.registry": 6, "ssh.connect_timeout": 8, "ssh.fanout": 9, "ssh.key": 10, "logs.archive": 12,
		"host[1].id": at(`id = "001"`, 2), "host[1].role": at(`role = "validator"`, 1), "host[1].port": at("port = 70000", 1),
		"host[1].user": at(`user = "a b"`, 1), "host[2].address": at(`address = "root@192.0.2.3:22"`, 1),
		"host[1].address": at(`address = "192.0.2.1"`, 2), "host[5].address": at(`address = "192.0.2.1"`, 3),
		"host[2].container": at(`container = "x y"`, 1), "host[2].api_port": at("api_port = 0", 1), "host[2].engine_socket": at(`engine_socket = "docker.sock"`, 1),
		"host[2].jump": at(`jump = "004"`, 1), "host[3].jump": at(`jump = "003"`, 1), "host[4].jump": at(`jump = "bastion:99999"`, 1),
		"host[5].colour": at(`colour = "blue"`, 1),
	}
	for key, line := range want {
		if have[key] != line {
			t.Errorf("%s: reported at line %d, want %d", key, have[key], line)
		}
	}
	for _, missing := range []string{"host[4].id", "host[4].role"} {
		if have[missing] == 0 {
			t.Errorf("%s: not reported", missing)
		}
	}
	if len(have) != len(want)+2 {
		t.Errorf("%d faults, want %d:\n%v", len(have), len(want)+2, err)
	}
}

func TestKeyFiles(t *testing.T) {
	dir := t.TempDir()
	writeKey(t, dir, "here", testKey(1), "")
	if err := os.WriteFile(filepath.Join(dir, "inagent.pub"), []byte("ssh-ed25519 AAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, ok := range map[string]bool{"here": true, "inagent": true, "gone": false, "../gone": false} {
		file := filepath.Join(dir, "hosts.toml")
		os.WriteFile(file, []byte(smallest+fmt.Sprintf("key = %q\n", key)), 0o600)
		inv, err := Load(file)
		if (err == nil) != ok {
			t.Errorf("key %s: %v", key, err)
		}
		if ok && inv.Hosts[0].Key != filepath.Join(dir, key) {
			t.Errorf("key %s is %s: relative paths start at hosts.toml", key, inv.Hosts[0].Key)
		}
	}
}

func TestJumpLoopsAreNamed(t *testing.T) {
	_, err := load(t, smallest+"jump = \"001\"\n")
	if err == nil || !strings.Contains(err.Error(), "001 -> 001") {
		t.Errorf("a host that jumps by itself: %v", err)
	}
}

func TestParseHop(t *testing.T) {
	good := map[string]hop{
		"bastion.example.org":          {address: "bastion.example.org"},
		"ops@bastion.example.org:2222": {user: "ops", address: "bastion.example.org", port: 2222},
		"192.0.2.1:22":                 {address: "192.0.2.1", port: 22},
		"[2001:db8::1]:22":             {address: "2001:db8::1", port: 22},
		"2001:db8::1":                  {address: "2001:db8::1"},
	}
	for text, want := range good {
		if got, err := parseHop(text); err != nil || got != want {
			t.Errorf("parseHop(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "a b", "x:0", "x:y", "@x", "-oProxyCommand=x", "user@"} {
		if got, err := parseHop(text); err == nil {
			t.Errorf("parseHop(%q) = %+v, want an error", text, got)
		}
	}
}

func TestEmptyAndUnreadableFiles(t *testing.T) {
	if _, err := load(t, ""); err == nil || !strings.Contains(err.Error(), "fleet") || !strings.Contains(err.Error(), "host") {
		t.Errorf("empty file: %v", err)
	}
	_, err := Load(filepath.Join(t.TempDir(), "none.toml"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// hosts.example.toml loads, shows every field there is, and the values it shows
// are the defaults.
func TestExampleShowsEveryFieldWithItsDefault(t *testing.T) {
	const example = "../hosts.example.toml"
	if _, err := Load(example); err != nil {
		t.Fatal(err)
	}
	_, positions, err := tomlfile.Decode[inventoryFile](example)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range fieldKeys(reflect.TypeFor[inventoryFile](), "") {
		if !positions.Has(key) {
			t.Errorf("hosts.example.toml does not show %s", key)
		}
	}
	shown, err := Load(example)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := load(t, "fleet = \"example\"\n[[host]]\nid = \"001\"\naddress = \"192.0.2.11\"\nrole = \"genesis\"\n")
	if err != nil {
		t.Fatal(err)
	}
	first, plain := shown.Hosts[0], bare.Hosts[0]
	first.said, plain.said = saidFields{}, saidFields{}
	if first != plain {
		t.Errorf("the example's first host is\n%+v, defaults are\n%+v", first, plain)
	}
	if !reflect.DeepEqual(shown.SSH, bare.SSH) || shown.Block != bare.Block || shown.LogArchive != bare.LogArchive || shown.Registry != bare.Registry {
		t.Errorf("the example shows %+v, defaults are %+v", shown, bare)
	}
}

// fieldKeys lists the keys of a file's struct as tomlfile names them.
func fieldKeys(t reflect.Type, at string) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		key := at + f.Tag.Get("toml")
		switch {
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, fieldKeys(f.Type, key+".")...)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			keys = append(keys, fieldKeys(f.Type.Elem(), key+"[0].")...)
		default:
			keys = append(keys, key)
		}
	}
	return keys
}

func TestSSHSettings(t *testing.T) {
	home := t.TempDir()
	os.MkdirAll(filepath.Join(home, ".ssh"), 0o700)
	writeKey(t, filepath.Join(home, ".ssh"), "work", testKey(1), "")
	answer := "user ops\nhostname 192.0.2.77\nport 2200\nidentityfile ~/.ssh/work\nidentityfile ~/.ssh/id_rsa\nidentitiesonly yes\nproxyjump gate.example.org:2022\nhostkeyalias node7\nproxycommand none\n"
	inv := &Inventory{Name: "f", Path: "x", SSH: SSH{UseConfig: true, KnownHosts: []string{"kh"}}, hopDefaults: Host{User: "root", Port: 22}}
	inv.Hosts = []Host{
		{ID: "001", Address: "seven", User: "root", Port: 22},
		{ID: "002", Address: "seven", User: "me", Port: 23, Key: "k", Jump: "", said: saidFields{user: true, port: true, key: true, jump: true}},
	}
	f := newFleet(inv, inv.Hosts, Options{Getenv: func(string) string { return home }})
	f.config.run = func(_ context.Context, args ...string) ([]byte, error) {
		if strings.Contains(strings.Join(args, " "), "gate.example.org") {
			return []byte("user gatekeeper\nhostname gate.example.org\nport 2022\n"), nil
		}
		return []byte(answer), nil
	}
	route, err := f.route(t.Context(), inv.Hosts[0], nil)
	if err != nil || len(route) != 2 {
		t.Fatalf("%+v, %v", route, err)
	}
	gate, host := route[0], route[1]
	if gate.user != "gatekeeper" || gate.target() != "gate.example.org:2022" {
		t.Errorf("jump host %+v", gate)
	}
	if host.target() != "192.0.2.77:2200" || host.user != "ops" || !host.only || len(host.keys) != 1 || filepath.Base(host.keys[0]) != "work" || host.known() != "node7:22" {
		t.Errorf("host %+v", host)
	}
	route, err = f.route(t.Context(), inv.Hosts[1], nil)
	if err != nil || len(route) != 1 || route[0].user != "me" || route[0].port != 23 || route[0].keys[0] != "k" {
		t.Errorf("what hosts.toml says does not win: %+v, %v", route, err)
	}
	answer = "hostname seven\nproxycommand nc %h %p\n"
	f.config.known = map[string]sshSettings{}
	_, err = f.route(t.Context(), inv.Hosts[0], nil)
	var proxy *ProxyCommandError
	if !errors.As(err, &proxy) || proxy.Hint() == "" {
		t.Errorf("%v, want a ProxyCommandError", err)
	}
}
