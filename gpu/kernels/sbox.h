// The S-box of AES as functions of three bits, for 32 bytes at once in each of eight words.
//
// Derived from the circuit of Boyar and Peralta ("A small depth-16 circuit for the AES S-box", 2012): 69 such functions
// forward. The tests run both over all 256 bytes.
#pragma once

// s[0] is the lowest bit.
PART void sub_byte(word *s) {
    word x0 = s[7], x1 = s[6], x2 = s[5], x3 = s[4], x4 = s[3], x5 = s[2], x6 = s[1], x7 = s[0];
    word y14 = lop3<0x24>(x3, x5, x3);
    word y13 = lop3<0x24>(x0, x6, x0);
    word y8 = lop3<0x24>(x0, x5, x0);
    word y1 = lop3<0x96>(x1, x2, x7);
    word y12 = lop3<0x96>(x3, x6, y8);
    word y2 = lop3<0x96>(x6, y13, y1);
    word y3 = lop3<0x96>(x5, x6, y2);
    word y15 = lop3<0x96>(x3, x4, y13);
    word y20 = lop3<0x96>(x1, x5, y15);
    word y10 = lop3<0x96>(x2, x5, y20);
    word y17 = lop3<0x96>(x2, x3, y8);
    word y21 = lop3<0x96>(x2, x4, y8);
    word y18 = lop3<0x96>(x0, y13, y21);
    word t2 = lop3<0x82>(x4, x5, y15);
    word t3 = lop3<0x48>(y1, y3, y10);
    word t4 = lop3<0x24>(t2, t3, t2);
    word t5 = lop3<0x60>(x7, y12, y3);
    word t7 = lop3<0x44>(x4, y13, y21);
    word t9 = lop3<0xa6>(x6, y1, t7);
    word t11 = lop3<0x9a>(y2, y18, t7);
    word t12 = lop3<0x14>(x0, x3, y20);
    word t14 = lop3<0x6a>(y14, y17, t12);
    word t16 = lop3<0x6a>(y8, y10, t12);
    word t18 = lop3<0x96>(t2, t5, t16);
    word t21 = lop3<0x96>(y20, t4, t14);
    word t22 = lop3<0x96>(y8, y10, t18);
    word t23 = lop3<0x96>(y21, t9, t14);
    word t24 = lop3<0x96>(y18, t11, t16);
    word t27 = lop3<0x6a>(t21, t23, t24);
    word t29 = lop3<0xe4>(t21, t22, t27);
    word t31 = lop3<0x96>(t22, t24, t27);
    word t33 = lop3<0xe4>(t23, t24, t31);
    word t36 = lop3<0x60>(t24, t27, t33);
    word t37 = lop3<0x96>(t23, t33, t36);
    word t39 = lop3<0x4c>(t22, t29, t31);
    word t40 = lop3<0x94>(t21, t22, t39);
    word t42 = lop3<0x24>(t29, t33, t29);
    word t43 = lop3<0x96>(t33, t40, t42);
    word t45 = lop3<0x96>(t33, t37, t43);
    word z0 = lop3<0x60>(y15, t43, t45);
    word z1 = lop3<0x28>(y1, y10, t37);
    word z3 = lop3<0x28>(x0, y18, t43);
    word z5 = lop3<0x28>(y2, y18, t29);
    word z8 = lop3<0x60>(y10, t42, t45);
    word z9 = lop3<0x60>(y12, t33, t37);
    word z11 = lop3<0x28>(x3, y1, t33);
    word z13 = lop3<0x28>(x6, y1, t40);
    word z15 = lop3<0x28>(x0, x3, t42);
    word z17 = lop3<0x60>(y8, t37, t40);
    word tc1 = lop3<0x6a>(y14, t45, z15);
    word tc2 = lop3<0x6a>(y3, t37, tc1);
    word tc4 = lop3<0x6a>(x7, t33, z0);
    word tc6 = lop3<0x6a>(y1, t40, z3);
    word tc7 = lop3<0x6a>(y13, t43, tc4);
    word tc8 = lop3<0x6a>(y17, t45, tc6);
    word tc10 = lop3<0x96>(z8, tc7, tc8);
    word tc11 = lop3<0x96>(z0, z1, tc6);
    word tc14 = lop3<0x96>(z3, z5, tc4);
    word S3 = lop3<0x96>(z9, tc2, tc11);
    word tc17 = lop3<0x6a>(y2, t29, tc10);
    word tc18 = lop3<0x96>(z13, tc1, tc14);
    word S7 = lop3<0x69>(tc4, tc7, tc18);
    word tc20 = lop3<0x6a>(y20, t42, tc8);
    word S2 = lop3<0x69>(z17, tc17, tc20);
    word S4 = lop3<0x24>(tc14, S3, tc14);
    word S1 = lop3<0x69>(z15, S3, tc20);
    word S6 = lop3<0x81>(tc10, tc18, tc10);
    word S0 = lop3<0x99>(z9, tc11, S1);
    word S5 = lop3<0x96>(z11, tc2, tc17);
    s[7] = S0; s[6] = S1; s[5] = S2; s[4] = S3; s[3] = S4; s[2] = S5; s[1] = S6; s[0] = S7;
}
