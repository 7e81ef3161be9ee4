package node

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDecreeSigForm(t *testing.T) {
	good := hex.EncodeToString([]byte("dilithium_sig_genesis_node_001_abc"))
	for name, c := range map[string]struct {
		sig  DecreeSig
		want string // in the error; "" is none
	}{
		"good":       {DecreeSig{"genesis_node_001", good}, ""},
		"no id":      {DecreeSig{"", good}, "without a node_id"},
		"empty":      {DecreeSig{"genesis_node_001", ""}, "empty"},
		"odd length": {DecreeSig{"genesis_node_001", good[1:]}, "not hex"},
		"not hex":    {DecreeSig{"genesis_node_001", "zz" + good}, "not hex"},
		"raw bytes":  {DecreeSig{"genesis_node_001", "00ff"}, "ASCII"},
		"line break": {DecreeSig{"genesis_node_001", good + "0a"}, "ASCII"},
		"too long":   {DecreeSig{"genesis_node_001", strings.Repeat("41", maxDecreeSig)}, "longer"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.sig.CheckForm()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestDecreeCalls holds the requests to the wire and the answers to their shapes.
func TestDecreeCalls(t *testing.T) {
	answer := ""
	var got struct {
		Method string
		Params json.RawMessage
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer srv.Close()
	c := &Client{Base: srv.URL}
	sig := DecreeSig{"genesis_node_002", hex.EncodeToString([]byte("signed"))}

	answer = `{"jsonrpc":"2.0","id":1,"result":{"node_id":"genesis_node_002","sig":"` + sig.Sig + `"}}`
	if v, err := c.DecreeEndorse(t.Context(), 3, 900); err != nil || v != sig || got.Method != "node_decreeEndorse" || string(got.Params) != `{"seq":3,"target_height":900}` {
		t.Errorf("%+v %v, asked %s %s", v, err, got.Method, got.Params)
	}
	answer = `{"jsonrpc":"2.0","id":1,"result":{"node_id":"genesis_node_002","sig":"00"}}`
	var bad *AnswerError
	if _, err := c.DecreeEndorse(t.Context(), 3, 900); !errors.As(err, &bad) {
		t.Errorf("a signature that is none: %v", err)
	}
	answer = `{"jsonrpc":"2.0","id":1,"result":{"accepted":true,"seq":3,"target_height":900}}`
	if err := c.DecreeSubmit(t.Context(), 3, 900, []DecreeSig{sig}); err != nil || !strings.Contains(string(got.Params), `"sigs":[{"node_id":"genesis_node_002"`) {
		t.Errorf("%v, asked %s", err, got.Params)
	}
	if err := c.DecreeSubmit(t.Context(), 4, 900, []DecreeSig{sig}); !errors.As(err, &bad) {
		t.Errorf("an answer about another decree: %v", err)
	}
	answer = `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"seq at or below applied floor"}}`
	var refused *RPCError
	if err := c.DecreeSubmit(t.Context(), 3, 900, []DecreeSig{sig}); !errors.As(err, &refused) || refused.Message != "seq at or below applied floor" {
		t.Errorf("%v", err)
	}
}
