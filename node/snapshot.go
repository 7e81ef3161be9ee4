package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxMicroblock bounds the body of one microblock, in bytes.
const MaxMicroblock = 64 << 20

// BusyError says all of the node's permits for snapshot transfers are taken. It is sent as HTTP 200 and says nothing about
// whether the snapshot is there.
type BusyError struct{ Path string }

func (e *BusyError) Error() string { return e.Path + ": the node serves no further snapshot now" }

// Hint says how to get a permit.
func (e *BusyError) Hint() string {
	return "a node has 16 permits for transfers; try again when others have ended, or ask another node"
}

// SnapshotManifest is what a node says of the chunks of a snapshot. The JSON of the real node is not known (facts 9.3), so
// nothing of it is demanded: a field that cannot be read under one of its usual names is nil, which is unknown and not zero.
type SnapshotManifest struct {
	Height *uint64
	Size   *uint64 // bytes of all chunks
	Chunks *uint64 // how many
}

// SnapshotManifest asks for the chunk manifest of the snapshot at a height. No such snapshot is a NotFoundError.
func (c *Client) SnapshotManifest(ctx context.Context, height uint64) (SnapshotManifest, error) {
	r, err := c.get(ctx, c.Base, snapshotPath(height)+"/manifest", maxBody)
	if err != nil {
		return SnapshotManifest{}, err
	}
	text, err := r.object()
	if err != nil {
		return SnapshotManifest{}, err
	}
	if text != "" || r.status != http.StatusOK {
		return SnapshotManifest{}, r.snapshotError(text, height)
	}
	fields, err := r.fields()
	if err != nil {
		return SnapshotManifest{}, err
	}
	m := SnapshotManifest{
		Height: uintField(fields, "height", "snapshot_height"),
		Size:   uintField(fields, "total_size", "total_bytes", "size"),
		Chunks: uintField(fields, "total_chunks", "chunk_count", "chunks"),
	}
	if m.Height != nil && *m.Height != height {
		return SnapshotManifest{}, r.bad("asked for the manifest of %d, got that of %d", height, *m.Height)
	}
	return m, nil
}

// fields reads an object of which the names are not known for sure.
func (r reply) fields() (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.body, &fields); err != nil || fields == nil {
		return nil, r.bad("body is not a JSON object")
	}
	return fields, nil
}

// uintField is the first of the named fields that holds a whole number, or a list, of which it is the length.
func uintField(fields map[string]json.RawMessage, names ...string) *uint64 {
	for _, name := range names {
		var n uint64
		var list []json.RawMessage
		switch raw := fields[name]; {
		case len(raw) == 0 || isNull(raw):
		case json.Unmarshal(raw, &n) == nil:
			return &n
		case json.Unmarshal(raw, &list) == nil:
			n = uint64(len(list))
			return &n
		}
	}
	return nil
}

// Transfer is what was read of a binary answer.
type Transfer struct {
	Bytes   uint64        // read
	Size    *uint64       // announced length of the whole, in bytes; nil where the node streams without one
	Whole   bool          // read to its end, and as long as announced
	Elapsed time.Duration // from the request to the last byte read
}

// Rate is the throughput in bytes a second, the wait for the first byte counted, so that it errs towards slow; 0 where no
// time passed that could be measured.
func (t Transfer) Rate() float64 {
	if t.Elapsed > 0 {
		return float64(t.Bytes) / t.Elapsed.Seconds()
	}
	return 0
}

// SnapshotChunk reads one chunk of a snapshot, at most limit bytes of it.
func (c *Client) SnapshotChunk(ctx context.Context, height, chunk uint64, limit int64) (Transfer, error) {
	return c.transfer(ctx, snapshotPath(height)+"/chunk/"+strconv.FormatUint(chunk, 10), height, limit)
}

// SnapshotFrame reads the first limit bytes of a whole snapshot and then ends the transfer. A whole transfer may be
// gigabytes and holds one of the node's permits.
func (c *Client) SnapshotFrame(ctx context.Context, height uint64, limit int64) (Transfer, error) {
	return c.transfer(ctx, snapshotPath(height), height, limit)
}

func snapshotPath(height uint64) string {
	return "/api/v1/snapshot/" + strconv.FormatUint(height, 10)
}

// transfer reads a binary answer without keeping it. The node tells its errors as JSON under HTTP 200, so only the content
// type says whether what follows is a snapshot.
func (c *Client) transfer(ctx context.Context, path string, height uint64, limit int64) (Transfer, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the transfer on the node too
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.Base, "/")+path, nil)
	if err != nil {
		return Transfer{}, fmt.Errorf("asking %s: %w", path, err)
	}
	begun := time.Now()
	res, err := c.httpClient().Do(req)
	if err != nil {
		return Transfer{}, fmt.Errorf("asking %s: %w", path, err)
	}
	defer res.Body.Close()
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	if kind != "application/octet-stream" || res.StatusCode != http.StatusOK {
		return Transfer{}, refusedTransfer(res, path, kind, height)
	}
	var t Transfer
	if res.ContentLength >= 0 {
		size := uint64(res.ContentLength)
		t.Size = &size
	}
	err = t.read(res.Body, begun, limit)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return t, &AnswerError{path, fmt.Sprintf("is cut off after %d bytes", t.Bytes), res.StatusCode}
	case err != nil:
		return t, fmt.Errorf("reading %s after %d bytes: %w", path, t.Bytes, err)
	case t.Bytes == 0:
		return t, &AnswerError{path, "is empty", res.StatusCode}
	}
	return t, nil
}

func (t *Transfer) read(body io.Reader, begun time.Time, limit int64) error {
	buf := make([]byte, 64<<10)
	for int64(t.Bytes) < limit {
		n, err := body.Read(buf[:min(int64(len(buf)), limit-int64(t.Bytes))])
		t.Bytes += uint64(n)
		t.Elapsed = time.Since(begun)
		if errors.Is(err, io.EOF) {
			t.Whole = t.Size == nil || *t.Size == t.Bytes
			return nil
		}
		if err != nil {
			return err
		}
	}
	t.Whole = t.Size != nil && *t.Size == t.Bytes
	return nil
}

// refusedTransfer reads the answer that came in place of a snapshot.
func refusedTransfer(res *http.Response, path, kind string, height uint64) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxSmall))
	if err != nil {
		return fmt.Errorf("reading answer of %s: %w", path, err)
	}
	r := reply{path, res.StatusCode, kind, body}
	if err := r.limited(res.Header.Get("Retry-After")); err != nil {
		return err
	}
	text, err := r.object()
	if err != nil {
		return err
	}
	return r.snapshotError(text, height)
}

// snapshotError tells the error texts of the snapshot routes apart (facts 1.12).
func (r reply) snapshotError(text string, height uint64) error {
	switch text {
	case "Snapshot not found":
		return &NotFoundError{What: fmt.Sprintf("snapshot %d", height)}
	case "snapshot serve busy":
		return &BusyError{r.path}
	case "":
		return r.bad("answered JSON in place of a snapshot")
	}
	return r.bad("node reports: %s", text)
}

// Microblock is one block as a node serves it. The answer of the real node is not written down (facts 1.0 has its status
// codes alone), so what is not there under its usual name is nil.
type Microblock struct {
	Height *uint64
	Hash   *Hash
	Bytes  int // of the answer
}

// Microblock asks for the block at a height, which is served from the body store or, on a node with an archive, from there.
// 404 is a NotFoundError. Height 0 is the genesis block, which has a route of its own.
func (c *Client) Microblock(ctx context.Context, height uint64) (Microblock, error) {
	path := "/api/v1/microblock/" + strconv.FormatUint(height, 10)
	r, err := c.get(ctx, c.Base, path, MaxMicroblock)
	if err != nil {
		return Microblock{}, err
	}
	if r.status == http.StatusNotFound && r.kind == "application/json" {
		return Microblock{}, &NotFoundError{What: fmt.Sprintf("microblock %d", height)}
	}
	text, err := r.object()
	switch {
	case err != nil:
		return Microblock{}, err
	case text != "":
		return Microblock{}, r.bad("node reports: %s", text)
	case r.status != http.StatusOK:
		return Microblock{}, r.bad("want HTTP 200")
	}
	fields, err := r.fields()
	if err != nil {
		return Microblock{}, err
	}
	m := Microblock{Height: uintField(fields, "height"), Bytes: len(r.body)}
	var hash Hash
	if raw := fields["hash"]; len(raw) > 0 && !isNull(raw) && json.Unmarshal(raw, &hash) == nil {
		m.Hash = &hash
	}
	if m.Height != nil && *m.Height != height {
		return Microblock{}, r.bad("asked for %d, got %d", height, *m.Height)
	}
	return m, nil
}
