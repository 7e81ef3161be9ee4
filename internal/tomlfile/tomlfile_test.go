package tomlfile_test

import (
	"strings"
	"testing"

	"github.com/qnetops/qnetops/internal/tomlfile"
)

type jump struct {
	Address string `toml:"address"`
	Port    uint16 `toml:"port"`
}

type host struct {
	ID    string   `toml:"id"`
	Port  int      `toml:"port"`
	Sudo  bool     `toml:"sudo"`
	Tags  []string `toml:"tags"`
	Jumps []jump   `toml:"jump"`
}

type chain struct {
	Block tomlfile.Duration `toml:"block"`
}

type file struct {
	Name  string `toml:"name"`
	Chain chain  `toml:"chain"`
	Hosts []host `toml:"host"`
}

const faulty = `name = 7
colour = "red"

[chain]
block = "soon"

[[host]]
id = "001"
prot = 22
port = "x"
jump = [{address = "192.0.2.1", port = 70000}, {adress = "192.0.2.2"}]

[[host]]
id = "002"
id = "003"
tags = ["a", 3, "b"]
[host.extra]
a = 1
`

func TestEveryFaultAtOnce(t *testing.T) {
	_, pos, err := tomlfile.DecodeBytes[file]("hosts.toml", []byte(faulty))
	if pos == nil || err == nil {
		t.Fatal(pos, err)
	}
	pos.Add("host[1].port", "is missing", "")
	pos.Add("host[0].port", "is missing", "") // already faulted: not again
	got := pos.Err().Error()
	want := strings.TrimSpace(`
hosts.toml:1:1: name: is the number 7, not a string in quotes
hosts.toml:2:1: colour: unknown key; known here: chain, host, name
hosts.toml:5:1: chain.block: is not a length of time such as "1s" or "1m30s"
hosts.toml:9:1: host[0].prot: unknown key; did you mean port?
hosts.toml:10:1: host[0].port: is a string, not a whole number from -9223372036854775808 to 9223372036854775807
hosts.toml:11:33: host[0].jump[0].port: is the number 70000, not a whole number from 0 to 65535
hosts.toml:11:49: host[0].jump[1].adress: unknown key; did you mean address?
hosts.toml:13:3: host[1].port: is missing
hosts.toml:15:1: host[1].id: is already set in line 14; keep one of the two
hosts.toml:16:14: host[1].tags[1]: is the number 3, not a string in quotes
hosts.toml:17:7: host[1].extra: unknown key; known here: id, jump, port, sudo, tags`)
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
