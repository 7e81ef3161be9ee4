package host

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"text/template"
)

var sha = strings.Repeat("0123456789abcdef", 4)

func allCommands() []Command {
	return []Command{
		Uname(), Inspect("qnet-genesis-001"), Clock(), Disk("/srv/o'hara data"), Checksum(sha), Install(sha),
		Agent(sha, ""), Agent(sha, "/run/docker.sock"), Agent(sha, "/run/o'dd dir/docker.sock"),
	}
}

func TestCommandsRoundTrip(t *testing.T) {
	for _, c := range allCommands() {
		for _, sudo := range []bool{false, true} {
			c := c.WithSudo(sudo)
			got, err := ParseCommand(c.String())
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			if got != c {
				t.Errorf("%s: parsed as %+v, built from %+v", c, got, c)
			}
			words, err := SplitWords(c.String())
			if err != nil || !slices.Equal(words, c.Argv()) {
				t.Errorf("%s: words %q, argv %q, %v", c, words, c.Argv(), err)
			}
		}
	}
}

func TestCommandLines(t *testing.T) {
	for line, c := range map[string]Command{
		"uname -sm":                                                 Uname(),
		"sudo -n -- date +%s.%N":                                    Clock().WithSudo(true),
		`df -P -B1 '/srv/o'\''hara'`:                                Disk("/srv/o'hara"),
		"sha256sum " + AgentDir + "/qnetops-" + sha:                 Checksum(sha),
		AgentDir + "/qnetops-" + sha + " host --socket /run/d.sock": Agent(sha, "/run/d.sock"),
	} {
		if c.String() != line {
			t.Errorf("built %q, want %q", c.String(), line)
		}
	}
}

func TestParseCommandRefuses(t *testing.T) {
	for _, line := range []string{
		"", "rm -rf /", "uname -a", "uname -sm; id", "uname  -sm", "df -P -B1 $(id)", "df -P -B1 relative", "date", "sudo uname -sm",
		"docker inspect --type container --format '{{json .Config.Env}}' x", "docker ps", "sh -c id sh " + sha,
		AgentDir + "/qnetops-" + sha + " lease", AgentDir + "/qnetops-" + sha + " host --socket", "/tmp/qnetops host",
		"sha256sum /etc/shadow", Inspect("a b").String(), Inspect("-f").String(), `df -P -B1 "/x"`, "df -P -B1 'open",
	} {
		if c, err := ParseCommand(line); err == nil {
			t.Errorf("%q accepted as %+v", line, c)
		}
	}
}

// dockerTemplate runs ReadTemplate as the docker client does on raw JSON.
func dockerTemplate(t *testing.T, raw string) []byte {
	t.Helper()
	tmpl, err := template.New("").Funcs(template.FuncMap{
		"json": func(v any) string {
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			if err := e.Encode(v); err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(b.String())
		},
		"split": strings.Split, "join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper,
	}).Parse(ReadTemplate)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tmpl.Option("missingkey=error").Execute(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadTemplatePrintsNoValues(t *testing.T) {
	out := dockerTemplate(t, `{"Id":"`+sha+`","Name":"/qnet-genesis-001","Image":"sha256:aa","RestartCount":3,"LogPath":"/l",
	 "State":{"Status":"running","ExitCode":0,"OOMKilled":false,"StartedAt":"2026-01-02T03:04:05.5Z","FinishedAt":"0001-01-01T00:00:00Z"},
	 "HostConfig":{"RestartPolicy":{"Name":"always","MaximumRetryCount":0}},
	 "Mounts":[{"Type":"bind","Source":"/srv/data","Destination":"/app/data"}],
	 "Config":{"Image":"r/q@sha256:bb","StopTimeout":90,"Labels":{"com.docker.compose.project":"qnet"},
	  "Env":["QNET_WALLET_SEED=sentinel-one = two","QNET_LOG_LEVEL=2","QNET_HALT_HEIGHT=77","MULTI=sentinel\nline","BARE","QNET_BUILD_ID=1111111"]}}`)
	for _, s := range []string{"sentinel", "two", "77", "1111111"} {
		if bytes.Contains(out, []byte(s)) {
			t.Errorf("a value leaked: %q in %s", s, out)
		}
	}
	f, err := ParseReadTemplate(append(out, '\n'))
	if err != nil {
		t.Fatal(err)
	}
	if f.ID != sha || f.Name != "qnet-genesis-001" || f.State != "running" || f.RestartCount != 3 || f.RestartPolicy != "always" ||
		f.LogLevel != "2" || f.StopTimeoutSeconds != 90 || f.Compose != "qnet" || !f.FinishedAt.IsZero() || f.StartedAt.IsZero() {
		t.Errorf("read %+v", f)
	}
	if want := []string{"QNET_WALLET_SEED", "QNET_LOG_LEVEL", "QNET_HALT_HEIGHT", "MULTI", "BARE", "QNET_BUILD_ID"}; !slices.Equal(f.EnvNames, want) {
		t.Errorf("names %q", f.EnvNames)
	}
	if !slices.Equal(f.OneShot, []string{"QNET_HALT_HEIGHT"}) {
		t.Errorf("one-shot %q", f.OneShot)
	}
	if f.DataDir.HostPath != "/srv/data" || f.DataDir.Kind != DataBind {
		t.Errorf("data dir %+v", f.DataDir)
	}
}

func TestReadTemplateBareContainer(t *testing.T) {
	out := dockerTemplate(t, `{"Id":"x","Name":"/n","Image":"sha256:aa","RestartCount":0,
	 "State":{"Status":"created","ExitCode":0,"OOMKilled":false,"StartedAt":"0001-01-01T00:00:00Z","FinishedAt":"0001-01-01T00:00:00Z"},
	 "HostConfig":{"RestartPolicy":{"Name":"","MaximumRetryCount":0}},"Mounts":[],
	 "Config":{"Image":"q","Labels":null,"Env":null}}`)
	f, err := ParseReadTemplate(out)
	if err != nil {
		t.Fatal(err)
	}
	if f.RestartPolicy != "no" || len(f.EnvNames) != 0 || f.DataDir.Kind != DataNone || !f.StartedAt.IsZero() {
		t.Errorf("read %+v", f)
	}
}
