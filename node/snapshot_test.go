package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// calls are the routes of this file, as one function each.
var snapshotCalls = map[string]struct {
	path string
	call func(*Client) error
}{
	"manifest": {"GET /api/v1/snapshot/90/manifest", func(c *Client) error { _, err := c.SnapshotManifest(context.Background(), 90); return err }},
	"chunk":    {"GET /api/v1/snapshot/90/chunk/0", func(c *Client) error { _, err := c.SnapshotChunk(context.Background(), 90, 0, 1<<20); return err }},
	"frame":    {"GET /api/v1/snapshot/90", func(c *Client) error { _, err := c.SnapshotFrame(context.Background(), 90, 1<<20); return err }},
	"block":    {"GET /api/v1/microblock/90", func(c *Client) error { _, err := c.Microblock(context.Background(), 90); return err }},
}

// A node says most of its errors as HTTP 200 (facts 1.0, 1.12): none of them may read as a snapshot or a block.
func TestSnapshotTraps(t *testing.T) {
	kind := func(err error) string {
		var limited *RateLimitedError
		var busy *BusyError
		var missing *NotFoundError
		var answer *AnswerError
		switch {
		case errors.As(err, &limited):
			return "limited"
		case errors.As(err, &busy):
			return "busy"
		case errors.As(err, &missing):
			return "missing"
		case errors.As(err, &answer):
			return "answer"
		}
		return fmt.Sprint(err)
	}
	for _, c := range []struct {
		name string
		a    answer
		want map[string]string // by call; "" stands for the others
	}{
		{"not found", asJSON(`{"error":"Snapshot not found","height":90}`), map[string]string{"": "missing", "block": "answer"}},
		{"busy", asJSON(`{"error":"snapshot serve busy"}`), map[string]string{"": "busy", "block": "answer"}},
		{"storage", asJSON(`{"error":"Failed to get snapshot","details":"internal error"}`), map[string]string{"": "answer"}},
		{"limit", asJSON(limitBody), map[string]string{"": "limited"}},
		{"short limit", asJSON(limitShort), map[string]string{"": "limited"}},
		{"an object", asJSON(`{"height":91}`), map[string]string{"": "answer"}},
		{"a page", answer{200, "text/html", "<html>gateway</html>"}, map[string]string{"": "answer"}},
		{"no type", answer{200, "", "x"}, map[string]string{"": "answer"}},
		{"404 as JSON", answer{404, "application/json", `{"error":"not here"}`}, map[string]string{"": "answer", "block": "missing"}},
		{"404 of the framework", answer{404, "text/plain", ""}, map[string]string{"": "answer"}},
		{"500", answer{500, "application/octet-stream", "xx"}, map[string]string{"": "answer"}},
		{"empty", answer{200, "application/octet-stream", ""}, map[string]string{"": "answer"}},
	} {
		for name, call := range snapshotCalls {
			want, ok := c.want[name]
			if !ok {
				want = c.want[""]
			}
			if got := kind(call.call(serve(t, map[string]answer{call.path: c.a}))); got != want {
				t.Errorf("%s, %s: %s, want %s", name, c.name, got, want)
			}
		}
	}
}

func TestSnapshotManifestNames(t *testing.T) {
	for body, want := range map[string][2]uint64{
		`{"height":90,"chunk_size":5,"total_size":10,"chunks":["a","b"]}`: {10, 2},
		`{"snapshot_height":90,"total_bytes":7,"chunk_count":3}`:          {7, 3},
		`{"total_size":10,"chunks":2}`:                                    {10, 2},
	} {
		m, err := serve(t, map[string]answer{"GET /api/v1/snapshot/90/manifest": asJSON(body)}).SnapshotManifest(context.Background(), 90)
		if err != nil || m.Size == nil || m.Chunks == nil || *m.Size != want[0] || *m.Chunks != want[1] {
			t.Errorf("%s: %+v, %v", body, m, err)
		}
	}
	m, err := serve(t, map[string]answer{"GET /api/v1/snapshot/90/manifest": asJSON(`{"chunks":null,"size":-1,"total_size":"5"}`)}).SnapshotManifest(context.Background(), 90)
	if err != nil || m.Height != nil || m.Size != nil || m.Chunks != nil {
		t.Errorf("what cannot be read is unknown: %+v, %v", m, err)
	}
}

// A transfer reads no more than it was told, and says whether that was all.
func TestTransfer(t *testing.T) {
	long := strings.Repeat("q", 300<<10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		switch r.URL.Path {
		case "/api/v1/snapshot/90":
			w.Header().Set("Content-Length", fmt.Sprint(len(long)))
			_, _ = io.WriteString(w, long)
		case "/api/v1/snapshot/180": // streamed without a length
			_, _ = io.WriteString(w, long)
			w.(http.Flusher).Flush()
		case "/api/v1/snapshot/270": // cut off
			w.Header().Set("Content-Length", fmt.Sprint(len(long)+1))
			_, _ = io.WriteString(w, long)
		}
	}))
	defer srv.Close()
	c := &Client{Base: srv.URL}
	for _, tc := range []struct {
		height uint64
		limit  int64
		bytes  uint64
		size   bool
		whole  bool
	}{{90, 1 << 20, 300 << 10, true, true}, {90, 300 << 10, 300 << 10, true, true}, {90, 100 << 10, 100 << 10, true, false},
		{180, 1 << 20, 300 << 10, false, true}, {180, 100 << 10, 100 << 10, false, false}} {
		got, err := c.SnapshotFrame(context.Background(), tc.height, tc.limit)
		if err != nil || got.Bytes != tc.bytes || (got.Size != nil) != tc.size || got.Whole != tc.whole {
			t.Errorf("%d up to %d: %+v, %v", tc.height, tc.limit, got, err)
		}
	}
	if got, err := c.SnapshotFrame(context.Background(), 270, 1<<20); err == nil || got.Bytes != 300<<10 {
		t.Errorf("a transfer that is cut off: %+v, %v", got, err)
	}
}

// slow is a body of so many bytes, each read of it costing a second.
type slow struct{ left int }

func (s *slow) Read(b []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	<-time.After(time.Second)
	n := min(len(b), s.left, 1000)
	s.left -= n
	return n, nil
}

func TestTransferRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got Transfer
		if err := got.read(&slow{5000}, time.Now(), 1<<20); err != nil {
			t.Fatal(err)
		}
		if got.Elapsed != 5*time.Second || got.Rate() != 1000 {
			t.Errorf("%+v, %v bytes a second", got, got.Rate())
		}
	})
	if (Transfer{Bytes: 5}).Rate() != 0 {
		t.Error("a rate out of nothing")
	}
}

func TestMicroblock(t *testing.T) {
	ask := func(body string) (Microblock, error) {
		return serve(t, map[string]answer{"GET /api/v1/microblock/90": asJSON(body)}).Microblock(context.Background(), 90)
	}
	m, err := ask(`{"height":90,"hash":"` + tip + `","transactions":[]}`)
	if err != nil || m.Height == nil || m.Hash == nil || m.Hash.String() != tip {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = ask(`{"hash":"short","transactions":[]}`)
	if err != nil || m.Height != nil || m.Hash != nil {
		t.Errorf("what cannot be read is unknown: %+v, %v", m, err)
	}
	if _, err := ask(`{"height":91}`); err == nil {
		t.Error("another block was taken for the one asked for")
	}
	for _, body := range []string{"", "[]", "null", `"x"`, "{"} {
		if _, err := ask(body); err == nil {
			t.Errorf("%q was taken for a block", body)
		}
	}
}

func FuzzSnapshotManifest(f *testing.F) {
	f.Add([]byte(`{"height":90,"chunks":["a"],"total_size":3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte("Rate limit")) {
			return
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
		}))
		defer srv.Close()
		m, err := (&Client{Base: srv.URL}).SnapshotManifest(context.Background(), 90)
		if err == nil && m.Height != nil && *m.Height != 90 {
			t.Errorf("took the manifest of %d", *m.Height)
		}
	})
}
