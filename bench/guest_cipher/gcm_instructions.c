// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// AES-GCM with the instructions of the processor, for the kernel of a guest of User Mode Linux.
//
// The kernel of a node encrypts TLS with these instructions. The one of User Mode Linux has its cipher in C only,
// which needs many times the processor time, so that a measurement there would show the cipher and nothing else.
// This module is "gcm(aes)" with AES-NI and PCLMULQDQ, eight blocks at a time. It is for measurements only.
//
// GHASH is computed as POLYVAL with the bytes of each block reversed (RFC 8452, appendix A): the hash key is
// multiplied by x once, and each product is then reduced with two multiplications by a constant.
//
// Registers: a guest's kernel is a process of the host, which saves all its registers when a signal interrupts it.
// Processes of the guest are other processes of the host. So the module need not save any.

#include <crypto/aes.h>
#include <crypto/algapi.h>
#include <crypto/internal/aead.h>
#include <crypto/internal/skcipher.h>
#include <crypto/scatterwalk.h>
#include <linux/module.h>

#define BLOCK 16
#define AT_ONCE 8
#define TAG 16
#define IV 12

typedef long long block __attribute__((vector_size(16)));
typedef char bytes __attribute__((vector_size(16)));
typedef unsigned int words __attribute__((vector_size(16)));
typedef struct {
	block value;
} __attribute__((packed, aligned(1), may_alias)) unaligned_block;

struct gcm_key {
	struct crypto_aes_ctx aes;
	// The hash key times x, and its powers: power[i] is H^(i+1).
	unaligned_block power[AT_ONCE];
};

struct state {
	block hash;
	words counter; // with the bytes of each word as in memory
	u32 number; // the last word of the counter
};

static const bytes REVERSED = { 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 };

static inline block load(const void *from)
{
	return ((const unaligned_block *)from)->value;
}

static inline void store(void *to, block value)
{
	((unaligned_block *)to)->value = value;
}

static inline block reversed(block value)
{
	return (block)__builtin_ia32_pshufb128((bytes)value, REVERSED);
}

static inline block halves_swapped(block value)
{
	return (block){ value[1], value[0] };
}

static inline block reduced(block low, block middle, block high)
{
	const block constant = { 0xc200000000000000ull, 0 };

	low ^= (block){ 0, middle[0] };
	high ^= (block){ middle[1], 0 };
	low = halves_swapped(low) ^ __builtin_ia32_pclmulqdq128(low, constant, 0x00);
	low = halves_swapped(low) ^ __builtin_ia32_pclmulqdq128(low, constant, 0x00);
	return high ^ low;
}

// The hash of the previous hash and of ``count`` blocks, at most AT_ONCE.
static inline block hashed(const struct gcm_key *key, block hash, const block *blocks, int count)
{
	block low = {}, middle = {}, high = {};
	int i;

	for (i = 0; i < count; i++) {
		block one = reversed(blocks[i]), power = key->power[count - 1 - i].value;

		if (!i)
			one ^= hash;
		low ^= __builtin_ia32_pclmulqdq128(one, power, 0x00);
		middle ^= __builtin_ia32_pclmulqdq128(one, power, 0x01);
		middle ^= __builtin_ia32_pclmulqdq128(one, power, 0x10);
		high ^= __builtin_ia32_pclmulqdq128(one, power, 0x11);
	}
	return reduced(low, middle, high);
}

// Encrypts ``count`` blocks in place.
static inline void encrypted(const struct gcm_key *key, block *blocks, int count)
{
	const u8 *schedule = (const u8 *)key->aes.key_enc;
	int rounds = 6 + key->aes.key_length / 4, round, i;
	block subkey = load(schedule);

	for (i = 0; i < count; i++)
		blocks[i] ^= subkey;
	for (round = 1; round < rounds; round++) {
		subkey = load(schedule + round * BLOCK);
		for (i = 0; i < count; i++)
			blocks[i] = __builtin_ia32_aesenc128(blocks[i], subkey);
	}
	subkey = load(schedule + rounds * BLOCK);
	for (i = 0; i < count; i++)
		blocks[i] = __builtin_ia32_aesenclast128(blocks[i], subkey);
}

static inline void key_stream(const struct gcm_key *key, struct state *state, block *stream, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		state->counter[3] = __builtin_bswap32(++state->number);
		stream[i] = (block)state->counter;
	}
	encrypted(key, stream, count);
}

static inline void crypt_blocks(const struct gcm_key *key, struct state *state, u8 *to, const u8 *from, int count,
				bool encrypting)
{
	block stream[AT_ONCE], text[AT_ONCE];
	int i;

	key_stream(key, state, stream, count);
	for (i = 0; i < count; i++)
		text[i] = load(from + i * BLOCK);
	if (!encrypting)
		state->hash = hashed(key, state->hash, text, count);
	for (i = 0; i < count; i++)
		store(to + i * BLOCK, text[i] ^= stream[i]);
	if (encrypting)
		state->hash = hashed(key, state->hash, text, count);
}

static void crypt(const struct gcm_key *key, struct state *state, u8 *to, const u8 *from, unsigned int length,
		  bool encrypting)
{
	u8 last[BLOCK] = {};

	for (; length >= AT_ONCE * BLOCK; length -= AT_ONCE * BLOCK) {
		crypt_blocks(key, state, to, from, AT_ONCE, encrypting);
		to += AT_ONCE * BLOCK;
		from += AT_ONCE * BLOCK;
	}
	for (; length >= BLOCK; length -= BLOCK) {
		crypt_blocks(key, state, to, from, 1, encrypting);
		to += BLOCK;
		from += BLOCK;
	}
	if (length) {
		block stream, text;

		key_stream(key, state, &stream, 1);
		memcpy(last, from, length);
		text = load(last);
		if (!encrypting)
			state->hash = hashed(key, state->hash, &text, 1);
		store(last, text ^ stream);
		memcpy(to, last, length);
		memset(last + length, 0, BLOCK - length);
		text = load(last);
		if (encrypting)
			state->hash = hashed(key, state->hash, &text, 1);
	}
}

// The tag of what was hashed so far.
static void finish(const struct gcm_key *key, struct state *state, u8 *tag, const u8 *iv, u64 associated, u64 length)
{
	block lengths = reversed((block){ length * 8, associated * 8 });
	u8 first[BLOCK] = { [15] = 1 };
	block mask;

	state->hash = hashed(key, state->hash, &lengths, 1);
	memcpy(first, iv, IV);
	mask = load(first);
	encrypted(key, &mask, 1);
	store(tag, reversed(state->hash) ^ mask);
}

static void begin(struct state *state, const u8 *iv)
{
	u8 first[BLOCK] = { [15] = 1 };

	memcpy(first, iv, IV);
	state->hash = (block){};
	state->counter = (words)load(first);
	state->number = 1;
}

static void set_powers(struct gcm_key *key)
{
	block power = {}, first;
	u64 low, high, carry;
	int i;

	encrypted(key, &power, 1);
	power = reversed(power);
	low = power[0];
	high = power[1];
	carry = high >> 63;
	high = (high << 1) | (low >> 63);
	low <<= 1;
	if (carry) {
		high ^= 0xc200000000000000ull;
		low ^= 1;
	}
	first = (block){ low, high };
	key->power[0].value = first;
	for (i = 1; i < AT_ONCE; i++) {
		block before = reversed(key->power[i - 1].value);

		key->power[i].value = hashed(key, (block){}, &before, 1);
	}
}

static int set_key(struct crypto_aead *aead, const u8 *raw, unsigned int length)
{
	struct gcm_key *key = crypto_aead_ctx(aead);
	int error = aes_expandkey(&key->aes, raw, length);

	if (!error)
		set_powers(key);
	return error;
}

static int set_tag_size(struct crypto_aead *aead, unsigned int size)
{
	return size == TAG ? 0 : -EINVAL;
}

static void hash_associated(const struct gcm_key *key, struct state *state, struct scatterlist *from,
			    unsigned int length)
{
	u8 buffer[BLOCK];
	unsigned int done;

	for (done = 0; done < length; done += BLOCK) {
		unsigned int part = min_t(unsigned int, BLOCK, length - done);
		block one;

		memset(buffer, 0, BLOCK);
		scatterwalk_map_and_copy(buffer, from, done, part, 0);
		one = load(buffer);
		state->hash = hashed(key, state->hash, &one, 1);
	}
}

static int run(struct aead_request *request, struct skcipher_walk *walk, unsigned int length, u8 *tag,
	       bool encrypting)
{
	const struct gcm_key *key = crypto_aead_ctx(crypto_aead_reqtfm(request));
	u8 iv[IV];
	struct state state;
	int error = 0;

	// A walk changes the IV of its request.
	memcpy(iv, request->iv, IV);
	begin(&state, iv);
	hash_associated(key, &state, request->src, request->assoclen);
	while (walk->nbytes) {
		unsigned int rest = walk->nbytes < walk->total ? walk->nbytes % BLOCK : 0;

		crypt(key, &state, walk->dst.virt.addr, walk->src.virt.addr, walk->nbytes - rest, encrypting);
		error = skcipher_walk_done(walk, rest);
		if (error)
			return error;
	}
	finish(key, &state, tag, iv, request->assoclen, length);
	return 0;
}

static int encrypt(struct aead_request *request)
{
	struct skcipher_walk walk;
	u8 tag[TAG];
	int error = skcipher_walk_aead_encrypt(&walk, request, false);

	error = error ?: run(request, &walk, request->cryptlen, tag, true);
	if (!error)
		scatterwalk_map_and_copy(tag, request->dst, request->assoclen + request->cryptlen, TAG, 1);
	return error;
}

static int decrypt(struct aead_request *request)
{
	unsigned int length = request->cryptlen - TAG;
	struct skcipher_walk walk;
	u8 tag[TAG], given[TAG];
	int error;

	scatterwalk_map_and_copy(given, request->src, request->assoclen + length, TAG, 0);
	error = skcipher_walk_aead_decrypt(&walk, request, false);
	error = error ?: run(request, &walk, length, tag, false);
	if (!error && crypto_memneq(tag, given, TAG))
		error = -EBADMSG;
	return error;
}

static struct aead_alg algorithm = {
	.setkey = set_key,
	.setauthsize = set_tag_size,
	.encrypt = encrypt,
	.decrypt = decrypt,
	.ivsize = IV,
	.maxauthsize = TAG,
	.chunksize = BLOCK,
	.base = {
		.cra_name = "gcm(aes)",
		.cra_driver_name = "gcm-aes-instructions",
		.cra_priority = 400, // above the one in C
		.cra_blocksize = 1,
		.cra_ctxsize = sizeof(struct gcm_key),
		.cra_module = THIS_MODULE,
	},
};

static int __init load_module(void)
{
	return crypto_register_aead(&algorithm);
}

static void __exit unload_module(void)
{
	crypto_unregister_aead(&algorithm);
}

module_init(load_module);
module_exit(unload_module);
MODULE_DESCRIPTION("AES-GCM with the instructions of the processor, for measurements in User Mode Linux");
MODULE_LICENSE("Dual MIT/GPL");
