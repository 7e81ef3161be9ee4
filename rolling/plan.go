package rolling

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/qnetops/qnetops/host"
	"github.com/qnetops/qnetops/node"
	"github.com/qnetops/qnetops/observe"
)

// Spec is what the operator asked for.
type Spec struct {
	// Image as typed; "" keeps each node's present image (for SetEnv alone).
	Image  string
	SetEnv []host.EnvVar
	Canary string
	// Targets are the ids to roll, Skipped those left out by name.
	Targets, Skipped []string
	// HoldOnFail leaves a node that failed M0 or M1 as it is instead of
	// putting the old container back.
	HoldOnFail bool
	// RecoveryHalted is the mode for a chain that stands (DESIGN invariant 2).
	RecoveryHalted bool
	Waivers        []Waiver
	// Arm makes this the roll that arms a cut-over; Policies gives nodes, by id,
	// a restart policy other than the one they have; KeepOld leaves the old
	// containers aside when all milestones passed, for a barrier of the caller.
	Arm      *Arming
	Policies map[string]host.Policy
	KeepOld  bool
	// Gates reads the activation heights of the builds; nil leaves them
	// unchecked. It needs an Image.
	Gates GateReader
}

// Waiver is a check overridden by name, with the reason that is journaled.
type Waiver struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

// Arming is what a roll that arms a cut-over puts into every successor. Such a
// roll asks for M0 to M3 and keeps the old containers aside: they are the way
// back to a node that is not armed.
type Arming struct {
	OneShot []host.EnvVar `json:"one_shot"`
	Policy  host.Policy   `json:"policy"` // while armed
}

// NodeInput is what the host agent of one target said before the plan.
type NodeInput struct {
	Facts host.Facts
	Carry host.CarryReport
	// Present is the image the container runs now, as the engine knows it.
	Present host.Image
	Err     error
}

// Inputs is everything a plan rests on besides the view: the image all nodes
// shall run and what each host said. It is a value, so that the same inputs
// give the same plan.
type Inputs struct {
	Image *host.Image
	Nodes map[string]NodeInput
	Gates *GateInput // nil: not asked for
}

// Plan is what a roll will do: printed, hashed, confirmed, and then run as it
// stands. It holds nothing that moves by itself (heights, times, producers).
type Plan struct {
	Schema         string     `json:"schema"`
	Kind           string     `json:"kind"`
	Fleet          string     `json:"fleet"`
	Image          ImagePlan  `json:"image"`
	Committee      Arithmetic `json:"committee"`
	Canary         string     `json:"canary,omitempty"`
	RecoveryHalted bool       `json:"recovery_halted"`
	SetEnv         []string   `json:"set_env"`
	// Env are the assignments behind SetEnv; they are public by rule
	// (secret-looking names are refused unless given as NAME_FILE).
	Env     []host.EnvVar `json:"env"`
	Waivers []Waiver      `json:"waivers"`
	Skipped []string      `json:"skipped"`
	Gates   string        `json:"gates"`
	Arm     *Arming       `json:"arm,omitempty"`
	KeepOld bool          `json:"keep_old,omitempty"`
	Nodes   []NodePlan    `json:"nodes"`
}

// ImagePlan is the one image of the whole roll. Digest is repository@sha256
// and empty when each node keeps its own.
type ImagePlan struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

// Arithmetic is the fault bound: a committee of Members seals with Quorum of
// them, so Spare may be down at once.
type Arithmetic struct {
	Members []string `json:"members"`
	Size    int      `json:"size"`
	Quorum  int      `json:"quorum"`
	Spare   int      `json:"spare"`
}

// The two things that can happen to a node of a plan.
const (
	ActionReplace = "replace"
	ActionNone    = "none"
)

// NodePlan is the part of one node.
type NodePlan struct {
	ID        string `json:"id"`
	Container string `json:"container"`
	// Why says why the node has this place in the order.
	Why    string `json:"why"`
	Action string `json:"action"`
	// ActionWhy is set where nothing is to be done.
	ActionWhy   string `json:"action_why,omitempty"`
	ContainerID string `json:"container_id"`
	FromRef     string `json:"from_ref"`
	FromDigest  string `json:"from_digest"`
	FromBuild   string `json:"from_build"`
	ToDigest    string `json:"to_digest"`
	StopTimeout int    `json:"stop_timeout_seconds"`
	OnFail      string `json:"on_fail"`
	OnFailWhy   string `json:"on_fail_why"`
	DataPath    string `json:"data_path"`
	// Aside is set in a restore: the name of the container that comes back,
	// whose id is ContainerID.
	Aside string `json:"aside,omitempty"`
	// Policy is the restart policy found on the old container, NextPolicy that of
	// the successor where it is another one. Both are set for cut-overs alone.
	Policy        *host.Policy `json:"policy,omitempty"`
	NextPolicy    *host.Policy `json:"next_policy,omitempty"`
	LinesHidden   bool         `json:"lines_hidden"`
	Carried       []host.Item  `json:"carried"`
	LeftOut       []host.Item  `json:"left_out"`
	Ambiguous     []host.Item  `json:"ambiguous"`
	CarryWarnings []string     `json:"carry_warnings"`
}

// Digest identifies the plan: SHA-256 over its canonical JSON (Go's encoding
// sorts map keys and the plan holds only ordered lists), in hex.
func (p Plan) Digest() string {
	body, err := json.Marshal(p)
	if err != nil {
		// Every field is plain data; a failure here is a programming error
		// that must not turn into an empty, matching digest.
		panic("rolling: plan cannot be encoded: " + err.Error())
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// leastStopSeconds is the flush time a node needs on SIGTERM (facts 5.1); a
// container's own longer timeout is kept.
const leastStopSeconds = 60

// New decides the plan from what was seen. It changes nothing and asks
// nothing; what forbids running it is the business of Preflight.
func New(view observe.View, in Inputs, spec Spec) Plan {
	plan := Plan{
		Schema:         "qnetops/plan/v1",
		Kind:           "roll",
		Fleet:          view.Fleet,
		Canary:         spec.Canary,
		RecoveryHalted: spec.RecoveryHalted,
		SetEnv:         []string{},
		Env:            spec.SetEnv,
		Waivers:        append([]Waiver{}, spec.Waivers...),
		Skipped:        append([]string{}, spec.Skipped...),
		Gates:          in.Gates.text(),
		Committee:      arithmetic(view),
		Nodes:          []NodePlan{},
		Arm:            spec.Arm,
		KeepOld:        spec.KeepOld || spec.Arm != nil,
	}
	sort.Strings(plan.Skipped)
	for _, v := range spec.SetEnv {
		plan.SetEnv = append(plan.SetEnv, v.Name)
	}
	if in.Image != nil {
		plan.Image = ImagePlan{Ref: spec.Image, Digest: in.Image.Digest, Bytes: in.Image.SizeBytes}
	}
	for _, turn := range order(view, spec) {
		plan.Nodes = append(plan.Nodes, planNode(turn, in, spec))
	}
	return plan
}

func arithmetic(view observe.View) Arithmetic {
	a := Arithmetic{Members: []string{}}
	if view.Seal != nil {
		a.Members = append(a.Members, view.Seal.Committee...)
	}
	a.Size = len(a.Members)
	a.Quorum = node.QuorumSize(a.Size)
	a.Spare = a.Size - a.Quorum
	return a
}

type turn struct{ id, why string }

// order puts unhealthy nodes first (they cost no further vote and must not be
// the ones left over), then the canary, then the rest by id.
func order(view observe.View, spec Spec) []turn {
	ids := append([]string{}, spec.Targets...)
	sort.Strings(ids)
	var sick, canary, rest []turn
	for _, id := range ids {
		n := view.Node(id)
		switch {
		case n != nil && n.Verdict != observe.Healthy && !spec.RecoveryHalted:
			sick = append(sick, turn{id, "unhealthy first: " + string(n.Verdict)})
		case id == spec.Canary:
			canary = append(canary, turn{id, "canary"})
		default:
			rest = append(rest, turn{id, "by id"})
		}
	}
	return append(append(sick, canary...), rest...)
}

func planNode(t turn, in Inputs, spec Spec) NodePlan {
	input := in.Nodes[t.id]
	p := NodePlan{ID: t.id, Why: t.why, Action: ActionReplace, OnFail: "restore", OnFailWhy: "default",
		Carried: items(input.Carry.Carried), LeftOut: items(input.Carry.LeftOut), Ambiguous: items(input.Carry.Ambiguous),
		CarryWarnings: append([]string{}, input.Carry.Warnings...)}
	if c := input.Facts.Container; c != nil {
		p.Container, p.ContainerID, p.FromRef = c.Name, c.ID, c.ImageRef
		p.StopTimeout = max(c.StopTimeoutSeconds, leastStopSeconds)
		p.DataPath = c.DataDir.HostPath
		p.LinesHidden = linesHidden(c.LogLevel)
		if len(c.OneShot) > 0 {
			p.OnFail = "hold"
			p.OnFailWhy = "the old container carries " + strings.Join(c.OneShot, ", ") + ", which would act again if it were put back"
		}
	}
	if spec.HoldOnFail {
		p.OnFail, p.OnFailWhy = "hold", "--on-fail hold"
	}
	p.FromDigest, p.FromBuild = input.Present.Digest, input.Present.Build
	p.ToDigest = p.FromDigest
	if in.Image != nil {
		p.ToDigest = in.Image.Digest
	}
	if p.ToDigest == "" {
		p.ToDigest = input.Present.ID
	}
	p.policies(input, spec)
	if sameImage(p, input) && len(spec.SetEnv) == 0 && spec.Arm == nil && !dropsOneShot(p) {
		p.Action, p.ActionWhy = ActionNone, "already runs this image and nothing else would change"
	}
	return p
}

// policies keeps what the node had and what it is to have.
func (p *NodePlan) policies(input NodeInput, spec Spec) {
	next, other := spec.Policies[p.ID]
	if spec.Arm != nil {
		next, other = spec.Arm.Policy, true
	}
	if !other {
		return
	}
	p.NextPolicy = &next
	if c := input.Facts.Container; c != nil {
		p.Policy = &host.Policy{Name: c.RestartPolicy, MaximumRetryCount: c.RestartRetries}
	}
}

// oneShot are the variables this plan arms.
func (p Plan) oneShot() []host.EnvVar {
	if p.Arm == nil {
		return nil
	}
	return p.Arm.OneShot
}

// sameImage says whether the container runs the target already, by digest; a
// tag says nothing about bytes.
func sameImage(p NodePlan, input NodeInput) bool {
	_, want, _ := strings.Cut(p.ToDigest, "@")
	if want == "" {
		return p.ToDigest != "" && p.ToDigest == input.Present.ID
	}
	if strings.HasSuffix(input.Present.Digest, want) {
		return true
	}
	if c := input.Facts.Container; c != nil {
		for _, d := range c.ImageDigests {
			if strings.HasSuffix(d, want) {
				return true
			}
		}
	}
	return false
}

// dropsOneShot says whether a replacement would rid the node of a one-shot
// variable; then it is worth doing even on the same image.
func dropsOneShot(p NodePlan) bool {
	for _, item := range p.LeftOut {
		if host.OneShot(item.Name) {
			return true
		}
	}
	return false
}

// linesHidden: participation and seal lines are written from level 3 on
// (facts 4); at level 2 and below a check keyed on them would wait for ever.
func linesHidden(level string) bool {
	return level == "0" || level == "1" || level == "2"
}

func items(in []host.Item) []host.Item {
	out := append([]host.Item{}, in...)
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].Field != out[j].Field {
			return out[i].Field < out[j].Field
		}
		return out[i].Name < out[j].Name
	})
	return out
}

// Targets returns the plan's nodes that will be replaced.
func (p Plan) Targets() []NodePlan {
	var out []NodePlan
	for _, n := range p.Nodes {
		if n.Action == ActionReplace {
			out = append(out, n)
		}
	}
	return out
}

// Node returns the part of one node, or nil.
func (p Plan) Node(id string) *NodePlan {
	for i := range p.Nodes {
		if p.Nodes[i].ID == id {
			return &p.Nodes[i]
		}
	}
	return nil
}

// waived returns the reason a check was waived with.
func (p Plan) waived(check string) (string, bool) {
	for _, w := range p.Waivers {
		if w.Check == check {
			return w.Reason, true
		}
	}
	return "", false
}

// ResolveRef turns the image as typed into the reference the hosts resolve. A
// name without a registry belongs to the inventory's registry and nowhere
// else: a public hub must never be asked for a validator's image.
func ResolveRef(image, registry string) (string, error) {
	first, _, slash := strings.Cut(image, "/")
	if slash && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return image, nil
	}
	if registry == "" {
		return "", &ImageError{Image: image, Reason: "the name holds no registry",
			What: "write registry/name:tag, or set [images] registry in hosts.toml"}
	}
	return strings.TrimRight(registry, "/") + "/" + image, nil
}

// ImageError is an image that cannot be rolled.
type ImageError struct {
	Image, Reason, What string
	Err                 error
}

func (e *ImageError) Error() string {
	s := fmt.Sprintf("image %s: %s", e.Image, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ImageError) Unwrap() error { return e.Err }

// Hint says what to do about the image.
func (e *ImageError) Hint() string { return e.What }
