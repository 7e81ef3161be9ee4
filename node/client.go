package node

import (
	"bytes"
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
	"unicode/utf8"
)

// Sizes above which a body is refused. The largest honest answer is a proof with
// a full committee: 1000 signatures and keys of some kilobytes each.
const (
	maxSmall = 64 << 10
	maxBody  = 8 << 20
	maxProof = 32 << 20
)

// Client asks one node. Every call is bounded by its context alone, follows no
// redirect and sends no Origin header (a request with one is "nobody" to the
// node). The zero HTTP means a plain client of its own without proxy.
type Client struct {
	// Base is the address of the API, for example "http://127.0.0.1:8001".
	Base string
	// MetricsBase is the address of the metrics port (API port + 100). It is not
	// published by the usual container; empty means not reachable.
	MetricsBase string
	HTTP        *http.Client
}

func (c *Client) httpClient() *http.Client {
	hc := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if c.HTTP != nil {
		hc = *c.HTTP
	}
	// A node never redirects; whoever does is something else on its port.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &hc
}

// reply is a body read to its end, with what is needed to judge it.
type reply struct {
	path   string
	status int
	kind   string // media type
	body   []byte
}

func (c *Client) get(ctx context.Context, base, path string, limit int64) (reply, error) {
	return c.do(ctx, http.MethodGet, base, path, nil, limit)
}

func (c *Client) do(ctx context.Context, method, base, path string, body []byte, limit int64) (reply, error) {
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(base, "/")+path, in)
	if err != nil {
		return reply{}, fmt.Errorf("asking %s: %w", path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.httpClient().Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("asking %s: %w", path, err)
	}
	defer res.Body.Close()
	var answer bytes.Buffer
	if n := res.ContentLength; n > 0 { // growing by doubling makes twice the garbage; what a node promises is not believed beyond that
		answer.Grow(int(min(n, maxSmall)) + bytes.MinRead)
	}
	if _, err := answer.ReadFrom(io.LimitReader(res.Body, limit+1)); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return reply{}, &AnswerError{path, "body is cut off", res.StatusCode}
		}
		return reply{}, fmt.Errorf("reading answer of %s: %w", path, err)
	}
	b := answer.Bytes()
	if int64(len(b)) > limit {
		return reply{}, &AnswerError{path, fmt.Sprintf("body is larger than %d bytes", limit), res.StatusCode}
	}
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	r := reply{path, res.StatusCode, kind, b}
	if err := r.limited(res.Header.Get("Retry-After")); err != nil {
		return reply{}, err
	}
	return r, nil
}

// limited recognises the rate limit in all its forms: the usual body, the short
// body of the snapshot route, and 429.
func (r reply) limited(retryHeader string) error {
	var e struct {
		Error string          `json:"error"`
		Retry json.RawMessage `json:"retry_after_seconds"`
	}
	text := len(r.body) < maxSmall && json.Unmarshal(r.body, &e) == nil && e.Error == "Rate limit exceeded"
	if !text && r.status != http.StatusTooManyRequests {
		return nil
	}
	secs, err := strconv.ParseUint(string(e.Retry), 10, 16)
	if err != nil {
		secs, _ = strconv.ParseUint(retryHeader, 10, 16)
	}
	return &RateLimitedError{r.path, time.Duration(secs) * time.Second}
}

func (r reply) bad(format string, args ...any) error {
	return &AnswerError{r.path, fmt.Sprintf(format, args...), r.status}
}

// text checks that the reply is 200 text/plain and returns it.
func (r reply) text() (string, error) {
	switch {
	case r.status != http.StatusOK:
		return "", r.bad("want HTTP 200")
	case r.kind != "text/plain":
		return "", r.bad("content type is %q, want text/plain", r.kind)
	case !utf8.Valid(r.body):
		return "", r.bad("text is not UTF-8")
	}
	return string(r.body), nil
}

// object checks that the reply is JSON and returns its error text, if it has one.
func (r reply) object() (errText string, err error) {
	if r.kind != "application/json" {
		if r.status != http.StatusOK {
			return "", r.bad("want HTTP 200")
		}
		return "", r.bad("content type is %q, want application/json", r.kind)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.body, &fields); err != nil {
		return "", r.bad("body is not a JSON object: %v", err)
	}
	raw, ok := fields["error"]
	if !ok || string(raw) == "null" {
		if string(fields["success"]) == "false" {
			return "", r.bad("node reports failure without a reason")
		}
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		s = "error of an unknown shape"
	}
	if s == "" {
		s = "error without text"
	}
	return clip(s), nil
}

// decode reads the reply into v, a pointer to a struct of json tags: an error
// body, another status than 200, a missing or null field, a number out of range
// or of another type are all errors.
func (r reply) decode(v any) error {
	text, err := r.object()
	if err != nil {
		return err
	}
	if text != "" {
		return r.bad("node reports: %s", text)
	}
	if r.status != http.StatusOK {
		return r.bad("want HTTP 200")
	}
	if err := decodeStrict(r.body, v); err != nil {
		return r.bad("%v", err)
	}
	return nil
}

func (c *Client) getJSON(ctx context.Context, path string, v any) error {
	r, err := c.get(ctx, c.Base, path, maxBody)
	if err != nil {
		return err
	}
	return r.decode(v)
}

// clip shortens text of a node before it enters an error, and keeps control
// characters out of the operator's terminal.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	const most = 200
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
